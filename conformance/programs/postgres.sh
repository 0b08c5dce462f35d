#!/bin/sh
# PostgreSQL and its pgbench, as the user postgres, who has a fabric of its own: postgres.sh PORT VERBATIM.
# A table goes in and comes out by COPY, and must be the same.
set -e
port=$1
verbatim=$2
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
if [ "$(id -u)" -eq 0 ]; then
	home=$(mktemp -d /tmp/verbatim-postgres.XXXXXX)
	trap 'rm -rf "$home"' EXIT
	chown postgres "$home"
	cd "$home"
	setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$home" TMPDIR="$home" \
		VERBATIM_FABRIC_DIR="$home/fabric" sh "$0" "$port" "$verbatim"
	exit
fi
export PGHOST=127.0.0.1 PGPORT="$port" PGUSER=postgres PGDATABASE=postgres
"$bin/initdb" -D data -A trust > initdb.log
"$bin/postgres" -D data -h 127.0.0.1 -p "$port" -k '' -F > postgres.log 2>&1 &
server=$!
trap 'kill -INT $server; wait $server' EXIT
for _ in $(seq 200); do
	"$bin/pg_isready" -q && break
	sleep 0.1
done
"$bin/pgbench" -i -s 1 -q
"$bin/pgbench" -c 4 -j 2 -t 200
"$bin/pgbench" -c 4 -j 2 -t 500 -S -M prepared
seq 200000 | sed 's/.*/&	row & of many/' > rows
"$bin/psql" -q -c 'create table t (n int, s text)' -c "\\copy t from rows"
"$bin/psql" -q -c "\\copy (select * from t order by n) to back"
cmp rows back
echo "$(sh "$(dirname "$0")/carried.sh" "$verbatim" && echo carried)"
