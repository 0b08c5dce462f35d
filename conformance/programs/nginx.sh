#!/bin/sh
# nginx with two workers that serve files of 100 bytes, 64 KiB and 3 MiB, until it is interrupted: nginx.sh PORT.
set -e
mkdir -p nginx/files
for size in 100 65536 3145728; do
	[ -e nginx/files/$size ] || head -c $size /dev/urandom > nginx/files/$size
done
(cd nginx/files && sha256sum 100 65536 3145728 > ../sums)
cat > nginx/nginx.conf << END
worker_processes 2;
daemon off;
pid nginx.pid;
error_log error.log;
env VERBATIM_FABRIC_DIR;
env VERBATIM_PATH;
env VERBATIM_ADDRESS;
env VERBATIM_SOCKETS_PORT;
events { worker_connections 512; }
http {
	access_log off;
	sendfile on;
	keepalive_requests 1000000;
	server { listen 127.0.0.1:$1; root $PWD/nginx/files; }
}
END
[ "$(id -u)" -ne 0 ] || sed -i '1i user root;' nginx/nginx.conf
exec nginx -p "$PWD/nginx" -c "$PWD/nginx/nginx.conf"
