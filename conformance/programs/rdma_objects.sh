# Usage: rdma_objects.sh DEVICE GID_INDEX PORT qp|cq|pd|mr|ctx|srq
# Starts a server of ibv_rc_pingpong, or of ibv_srq_pingpong for srq, and prints the lines of `rdma resource show` that show its object of this kind.
program=ibv_rc_pingpong
case "$4" in
    qp) pattern='type RC .*state [A-Z]+ .*sq-psn [0-9]+' ;;
    cq) pattern='cqe [0-9]+ ' ;;
    pd) pattern='users [0-9]+ ' ;;
    mr) pattern='mrlen [0-9]+ ' ;;
    ctx) pattern='ctxn [0-9]+ ' ;;
    srq) pattern='type BASIC .*lqpn [0-9]+' program=ibv_srq_pingpong ;;
    *) exit 2 ;;
esac
$program -d "$1" -g "$2" -p "$3" >/dev/null &
server=$!
trap 'kill $server' EXIT
tries=0
until rdma resource show "$4" | grep -E "$pattern" | grep "pid $server "; do
    kill -0 $server 2>/dev/null || exit 1
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 1
    sleep 0.1
done
