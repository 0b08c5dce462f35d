#!/bin/sh
# The network of the targets `wire-*` and of `suite.sh`, in the virtual machine of `cargo xtask rxe`: Soft-RoCE at one end of a cable, as
# `wire0` with the addresses 10.1.0.1 and fd00:1::1, and at the other end, with .2 and ::2, a second Soft-RoCE `wire1`, or the
# network namespace `soft`, which has the software NIC.
#
# wire.sh soft|rxe MTU [NETEM...]: what netem does is done in both directions.
set -eu
peer=$1
mtu=$2
shift 2

ip link add wirea type veth peer name wireb
case $peer in
soft)
    ip netns add soft
    ip link set wireb netns soft
    there="ip -n soft"
    ip -n soft link set lo up
    ;;
rxe) there=ip ;;
esac
ip link set wirea mtu "$mtu" up
$there link set wireb mtu "$mtu" up
here_mac=$(ip -br link show wirea | awk '{print $3}')
there_mac=$($there -br link show wireb | awk '{print $3}')

case $peer in
soft)
    ip addr add 10.1.0.1/24 dev wirea
    ip addr add fd00:1::1/64 dev wirea nodad
    ip -n soft addr add 10.1.0.2/24 dev wireb
    ip -n soft addr add fd00:1::2/64 dev wireb nodad
    ;;
rxe)
    # Two addresses of one namespace reach each other by the cable: such routes are looked at before the local ones.
    for device in all wirea wireb; do
        echo 0 >/proc/sys/net/ipv4/conf/$device/rp_filter
        echo 1 >/proc/sys/net/ipv4/conf/$device/accept_local
    done
    for family in -4 -6; do
        ip $family rule add pref 10 lookup local
        ip $family rule del pref 0
    done
    cable() { # FAMILY DEVICE OWN PEER PEER_MAC TABLE
        ip addr add "$3" dev "$2" $([ "$1" = -6 ] && echo nodad)
        ip "$1" rule add pref 1 to "$4" oif "$2" lookup "$6"
        ip "$1" route add "$4" dev "$2" table "$6"
        ip "$1" neigh add "$4" lladdr "$5" dev "$2" nud permanent
    }
    cable -4 wirea 10.1.0.1 10.1.0.2 "$there_mac" 101
    cable -4 wireb 10.1.0.2 10.1.0.1 "$here_mac" 102
    cable -6 wirea fd00:1::1 fd00:1::2 "$there_mac" 101
    cable -6 wireb fd00:1::2 fd00:1::1 "$here_mac" 102
    rdma link add wire1 type rxe netdev wireb
    ;;
esac
rdma link add wire0 type rxe netdev wirea

# The GIDs of the addresses come a moment after the device.
for device in /sys/class/infiniband/wire?; do
    tries=0
    until grep -qi '0000:ffff:0a01:' "$device/ports/1/gids/1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ]
        sleep 0.1
    done
done

if [ $# -gt 0 ]; then
    tc qdisc add dev wirea root netem limit 20000 "$@"
    case $peer in
    soft) tc -n soft qdisc add dev wireb root netem limit 20000 "$@" ;;
    rxe) tc qdisc add dev wireb root netem limit 20000 "$@" ;;
    esac
fi
