# How the scripts of tests/common/machine.rs begin. bash runs it as the first process of new namespaces (mounts, processes,
# network; without root also users), which end with it: what it mounts, makes and starts is gone then.
#
# BUILT is the folder of the program and its libraries, WORK that of the files of this script.
set -eu
# The names of `ip netns`, and the fabrics.
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
# Another user may have no way into the folders that lead there.
mount --bind "$BUILT" /mnt
export PATH="/run/bin:/mnt:$PATH:/usr/sbin:/sbin"
mkdir /run/bin
cd "$WORK"
ip link set lo up

# In a user namespace of a user who is not root there is nobody else to become. Another one below it has one.
if [ "$(awk '{ users += $3 } END { print (users > 1) }' /proc/self/uid_map)" = 0 ]; then
    cat >/run/bin/setpriv <<'SETPRIV'
#!/bin/sh
[ "$1 $2 $3" = "--reuid 65534 --clear-groups" ] || PATH=${PATH#/run/bin:} exec setpriv "$@"
shift 3
exec unshare --user --map-user=65534 --map-group=65534 -- "$@"
SETPRIV
    chmod +x /run/bin/setpriv
fi

# fail MESSAGE: ends the script, and so the machine.
fail() {
    echo "machine.sh: $*" >&2
    exit 1
}

# listens PID: whether a server listens, at TCP in its network namespace or for connections of rdma_cm.
listens() {
    cat /proc/"$1"/net/tcp* 2>/dev/null | awk '$4 == "0A" { found = 1 } END { exit !found }' ||
        [ -n "$(find /proc/"$1"/root/dev/shm -path '*/rdma_cm/mads-*' 2>/dev/null)" ]
}

# ready PID: waits until it listens.
ready() {
    until listens "$1"; do
        kill -0 "$1" 2>/dev/null || fail "the server has ended before it listened"
        sleep 0.02
    done
}

# two_hosts LEFT RIGHT: network namespaces of these names with the addresses 192.0.2.7 and 192.0.2.8.
two_hosts() {
    ip netns add "$1"
    ip netns add "$2"
    ip link add eth0 netns "$1" type veth peer name eth0 netns "$2"
    ip -n "$1" address add 192.0.2.7/24 dev eth0
    ip -n "$2" address add 192.0.2.8/24 dev eth0
    for ns in "$1" "$2"; do
        ip -n "$ns" link set eth0 up
        ip -n "$ns" link set lo up
    done
}

# wait_for COMMAND...: until it succeeds. A watchdog ends what never comes.
wait_for() {
    until "$@"; do sleep 0.02; done
}
