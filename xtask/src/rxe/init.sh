#!/bin/busybox sh
# The first process of the virtual machine: makes the devices, lays a writable layer over the
# host's file system, runs /job in it, and powers off. See mod.rs for the ports.
#
# Lines on the control port: "ready", "exit STATUS", or "failed WORDS" when a step fails.

/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

for module in /modules/*.ko; do
    case "$module" in
    # Without an argument it would add a device of its own accord.
    *-dummy.ko) insmod "$module" numdummies=0 ;;
    *) insmod "$module" ;;
    esac || echo "insmod $module failed"
done

port() {
    for name in /sys/class/virtio-ports/*/name; do
        if [ "$(cat "$name")" = "$1" ]; then
            basename "$(dirname "$name")"
            return
        fi
    done
}
control=/dev/$(port verbatim.control)
stdout=/dev/$(port verbatim.stdout)
stderr=/dev/$(port verbatim.stderr)
exec 9<>"$control"

# What the host says on this port is nothing, until it is gone: then nobody waits for the result.
(cat <&9 >/dev/null; poweroff -f) &

fail() {
    echo "failed $*" >&9
    poweroff -f
    exit 1
}

try() {
    words=$("$@" 2>&1) || fail "$*: $words"
}

try mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
try mount -t tmpfs tmpfs /layer
mkdir /layer/upper /layer/work
try mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root
try mount -t tmpfs tmpfs /root/run
# libibverbs loads the library of each provider that is named here into every program. The only devices are Soft-RoCE's.
for driver in /root/etc/libibverbs.d/*.driver; do
    [ "$driver" = /root/etc/libibverbs.d/rxe.driver ] || rm -f "$driver"
done
mkdir -p /dev/shm /dev/pts
try mount -t tmpfs tmpfs /dev/shm
try mount -t devpts devpts /dev/pts
try mount --rbind /dev /root/dev
try mount --bind /proc /root/proc
try mount --bind /sys /root/sys

# On a busy host the kernel may take the TSC's rate for a multiple of what it is; it notices, and
# goes on with the wrong one. The HPET's is right, and slow to read.
if dmesg | grep -q 'calibration deviates'; then
    echo hpet >/sys/devices/system/clocksource/clocksource0/current_clocksource
fi

try ip link set lo up
try ip link add dummy0 type dummy
# Room for packets of the largest MTU that RoCE has, and their headers.
try ip link set dummy0 mtu 4200 up
try ip addr add 192.0.2.1/24 dev dummy0
try chroot /root rdma link add rxe0 type rxe netdev dummy0
# The GID of the address comes a moment after it.
tries=0
until [ "$(cat /sys/class/infiniband/rxe0/ports/1/gids/1 2>/dev/null)" = 0000:0000:0000:0000:0000:ffff:c000:0201 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || fail "rxe0 has no GID for 192.0.2.1"
    sleep 0.1
done

cp /job /root/run/job
echo ready >&9
chroot /root /bin/sh /run/job </dev/null >"$stdout" 2>"$stderr" 9>&-
echo "exit $?" >&9
poweroff -f
