# Usage: rdma_objects.sh DEVICE GID_INDEX PORT qp|cq|pd|mr
# Starts a server of ibv_rc_pingpong and prints the lines of `rdma resource show` that show its object of this kind.
case "$4" in
    qp) pattern='type RC .*state [A-Z]+ .*sq-psn [0-9]+' ;;
    cq) pattern='cqe [0-9]+ ' ;;
    pd) pattern='users [0-9]+ ' ;;
    mr) pattern='mrlen [0-9]+ ' ;;
    *) exit 2 ;;
esac
ibv_rc_pingpong -d "$1" -g "$2" -p "$3" >/dev/null &
server=$!
trap 'kill $server' EXIT
tries=0
until rdma resource show "$4" | grep -E "$pattern" | grep "pid $server "; do
    kill -0 $server 2>/dev/null || exit 1
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 1
    sleep 0.1
done
