# Two containers with a network between them, as an engine makes them, behind machine.sh: each has its own users, network,
# mounts, processes, shared memory, host name, no IPv6 and no capability. The user in them is 65534.

cat >/run/container <<'CONTAINER'
# NAME COMMAND...: what is to be set up inside.
set -eu
hostname "$1"
shift
mount -t tmpfs -o nosuid,nodev,noexec,size=64m,mode=1777 shm /dev/shm
mount -t sysfs -o ro sysfs /sys
for conf in all default; do
    # A kernel without IPv6 has no such file.
    [ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/$conf/disable_ipv6
done
ip link set lo up
# So do the engines' filters of system calls.
[ "$USER_NAMESPACES" = allowed ] || echo 0 >/proc/sys/user/max_user_namespaces
touch /dev/shm/is_set_up
# Until there is a network.
read -r _
rm /dev/shm/is_set_up
exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
CONTAINER

# container NAME COMMAND...: a container that waits for a line in NAME.start. Its first process, as seen from here, is $init.
container() {
    mkfifo "/run/$1.start"
    unshare --user --map-user=65534 --map-group=65534 --keep-caps --net --mount --pid --ipc --uts --cgroup \
        --fork --kill-child --mount-proc sh /run/container "$@" <>"/run/$1.start" >"out.$1" 2>&1 &
    wait_for has_child $!
    init=$(children $!)
    wait_for test -e "/proc/$init/root/dev/shm/is_set_up"
}

children() {
    tr -d ' ' <"/proc/$1/task/$1/children"
}

has_child() {
    kill -0 "$1" || fail "a container has not started"
    [ -n "$(children "$1")" ]
}

# in_network PID COMMAND...
in_network() {
    nsenter --net="/proc/$1/ns/net" -- "${@:2}"
}

# containers SERVER CLIENT: runs these commands, the second one when the first one listens. Both must succeed. The server has
# the address 172.18.0.2.
containers() {
    # shellcheck disable=SC2086 # They are words.
    container server $1
    local server=$! server_init=$init
    # shellcheck disable=SC2086
    container client $2
    local client=$! client_init=$init
    ip link add eth0 netns "/proc/$server_init/ns/net" type veth peer name eth0 netns "/proc/$client_init/ns/net"
    in_network "$server_init" ip address add 172.18.0.2/16 dev eth0
    in_network "$client_init" ip address add 172.18.0.3/16 dev eth0
    in_network "$server_init" ip link set eth0 up
    in_network "$client_init" ip link set eth0 up
    echo >/run/server.start
    ready "$server_init"
    echo >/run/client.start
    wait "$client" || fail "the client has failed"
    wait "$server" || fail "the server has failed"
}
