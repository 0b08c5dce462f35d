#!/bin/sh
# Fails unless RDMA has carried more bytes than at the last look: carried.sh VERBATIM. The last look is in the file
# `carried` of the folder.
set -e
now=$("$1" sockets --stat --json | sed -n 's/.*"type":"ended".*"bytes":\([0-9]*\).*/\1/p')
if [ -z "$now" ]; then
	echo "$1 sockets --stat --json has no totals"
	exit 1
fi
before=$(cat carried 2> /dev/null || echo 0)
echo "$now" > carried
if [ "$now" -le "$before" ]; then
	echo "no byte went by RDMA"
	"$1" sockets --stat
	exit 1
fi
