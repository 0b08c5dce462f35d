#!/bin/sh
# Values of many sizes, and all bytes that a line can have, come back from Redis as they went: redis_values.sh PORT.
set -e
i=0
: > commands
: > wanted
while [ $i -lt 600 ]; do
	value=$(head -c $((i * i / 4 + 1)) /dev/urandom | base64 -w 0)
	printf 'SET k%s %s\n' $i "$value" >> commands
	printf '%s\n' "$value" >> wanted
	i=$((i + 1))
done
i=0
while [ $i -lt 600 ]; do
	printf 'GET k%s\n' $i >> commands
	i=$((i + 1))
done
redis-cli -p "$1" < commands > printed
grep -c '^OK$' printed | grep -qx 600
grep -v '^OK$' printed | cmp - wanted
echo "600 values"
