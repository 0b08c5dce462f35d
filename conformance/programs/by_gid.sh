#!/bin/sh
# A program is given the first GID of a device where its arguments say GID: by_gid.sh DEVICE PROGRAM [ARGUMENT]…
set -e
gid=$(cat "/sys/class/infiniband/$1/ports/1/gids/0")
shift
for word; do
	shift
	[ "$word" = GID ] && word=$gid
	set -- "$@" "$word"
done
exec "$@"
