#!/bin/sh
# Python's HTTP server, with connections that stay open: http_server.sh PORT.
set -e
mkdir -p files
for size in 1 1000 200000; do
	[ -e files/$size ] || head -c $size /dev/urandom > files/$size
done
(cd files && sha256sum 1 1000 200000 > ../sums)
exec python3 -m http.server "$1" --bind 127.0.0.1 --directory files --protocol HTTP/1.1
