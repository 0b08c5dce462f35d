#!/bin/sh
# wheel.sh FOLDER NAME VERSION: installs a wheel of PyPI in FOLDER/NAME-VERSION, without what it depends on, if it is not there.
set -eu
to=$1/$2-$3
[ ! -e "$to" ] || exit 0
new=$(mktemp -d "$1.XXXXXX")
/usr/bin/python3 -m pip --disable-pip-version-check install -q --no-deps --target "$new" "$2==$3"
mkdir -p "$1"
# Another run may have been faster.
mv -T "$new" "$to" || rm -r "$new"
