#!/bin/sh
# Programs of another release of Debian, with that release's loader and C library.
#
# debian_release.sh setup FOLDER RELEASE PACKAGE...: unpacks packages into FOLDER/RELEASE, from the mirror that this machine uses, if
# they are not there. What they depend on is not added.
# debian_release.sh run FOLDER/RELEASE PROGRAM [ARGUMENT...]: runs a program. Libraries that are not of the packages, such as libibverbs,
# come from LD_LIBRARY_PATH.
set -eu

setup() {
    folder=$1 release=$2
    shift 2
    [ ! -e "$folder/$release" ] || exit 0
    mkdir -p "$folder"
    new=$(mktemp -d "$folder/new.XXXXXX")
    mirror=$(apt-get indextargets --format '$(SITE) $(COMPONENT)' 'Created-By: Packages' | sed -n '/security/d; s/ main$//p' | head -n 1)
    mkdir -p "$new/apt/lists/partial" "$new/apt/cache/archives/partial" "$new/files"
    : >"$new/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$new/apt/sources.list"
    cat >"$new/apt/apt.conf" <<EOF
Dir::Etc::sourcelist "$new/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$new/apt/lists";
Dir::State::status "$new/apt/status";
Dir::Cache "$new/apt/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "root";
EOF
    export APT_CONFIG="$new/apt/apt.conf"
    apt-get -qq update
    (cd "$new/apt" && apt-get -qq download "$@")
    for package in "$new"/apt/*.deb; do
        dpkg-deb -x "$package" "$new/files"
    done
    # Another run may have been faster.
    mv -T "$new/files" "$folder/$release" || true
    rm -r "$new"
}

run() {
    files=$1 name=$2
    shift 2
    loader=$(echo "$files"/usr/lib*/ld-linux-*.so.*)
    for program in "$files"/usr/bin/"$name" "$files"/usr/sbin/"$name"; do
        [ ! -e "$program" ] || break
    done
    libraries=$(echo "$files"/usr/lib/*-linux-gnu)
    exec "$loader" --library-path "${LD_LIBRARY_PATH:-}:$libraries" --argv0 "$name" "$program" "$@"
}

"$@"
