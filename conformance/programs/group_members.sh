# Usage: group_members.sh ADDRESS
# Joins a multicast group with mckey of librdmacm, and prints the group, its member and the switch's route.
mckey -m 224.1.2.3 -b "$1" >/dev/null 2>&1 &
member=$!
trap 'kill $member' EXIT
tries=0
until saquery -m | grep -q NodeDescription; do
    kill -0 $member 2>/dev/null || exit 1
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 1
    sleep 0.1
done
saquery -g
saquery -m
ibroute -M 2
