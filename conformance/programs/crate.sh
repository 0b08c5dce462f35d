#!/bin/sh
# crate.sh FOLDER NAME VERSION: builds the examples of a crate of crates.io, and installs them in FOLDER/NAME-VERSION, if they are not
# there. The crate's own lock file has the versions of what it depends on.
set -eu
to=$1/$2-$3
[ ! -e "$to" ] || exit 0
mkdir -p "$1"
new=$(mktemp -d "$1/new.XXXXXX")
# bindgen loads libclang, and needs the headers of a compiler.
LIBCLANG_PATH=$(find /usr/lib/llvm-*/lib -name 'libclang*.so*' -not -name 'libclang-cpp*' -printf '%h\n' | head -n 1)
BINDGEN_EXTRA_CLANG_ARGS="-I$(cc -print-file-name=include)"
export LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS
cargo install --quiet --debug --locked --examples --version "$3" --root "$new/root" --target-dir "$new/target" "$2"
# Another run may have been faster.
mv -T "$new/root" "$to" || true
rm -r "$new"
