#!/bin/sh
# HAProxy, which splices between its clients and nginx, until it is interrupted: haproxy.sh PORT.
set -e
behind=$(($1 < 40000 ? $1 + 20000 : $1 - 20000))
sh "$(dirname "$0")/nginx.sh" "$behind" &
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
