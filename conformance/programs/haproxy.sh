#!/bin/sh
# HAProxy, which splices between its clients and nginx, until it is interrupted: haproxy.sh PORT.
set -e
# Below the ports that the kernel gives to clients, one of which may be in use.
behind=$((10000 + $1 % 20000))
sh "$(dirname "$0")/nginx.sh" "$behind" &
nginx=$!
# HAProxy closes the connections of its clients while nginx does not listen.
until grep -q "^ *[0-9]*: 0100007F:$(printf %04X "$behind") 00000000:0000 0A " /proc/net/tcp; do
	if ! kill -0 "$nginx" 2> /dev/null; then
		echo "nginx has ended before it listened"
		cat nginx/error.log
		exit 1
	fi
	sleep 0.05
done
cat > haproxy.cfg << END
global
	maxconn 200
	nbthread 2
defaults
	mode tcp
	option splice-request
	option splice-response
	timeout connect 10s
	timeout client 60s
	timeout server 60s
listen files
	bind 127.0.0.1:$1
	server nginx 127.0.0.1:$behind
END
exec haproxy -db -f haproxy.cfg
