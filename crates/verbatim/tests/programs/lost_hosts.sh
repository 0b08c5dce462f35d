# Two hosts, of which one or the network between them is lost in the middle of ib_write_bw, behind machine.sh.

two_hosts left right
# They go on until something happens. A timeout of 0.5 s, and seven retries, is what a busy machine needs.
ENDLESS="-D 1000 -s 4096 -F -u 17"

# on HOST COMMAND...: runs it there as an unprivileged user.
on() {
    exec ip netns exec "$1" setpriv --reuid 65534 --clear-groups verbatim run -- "${@:2}"
}

# perftest ARGUMENTS: starts the server $server on left and the client $client on right, and waits for payload.
perftest() {
    # shellcheck disable=SC2086 # They are words.
    on left ib_write_bw $1 >out.server 2>&1 &
    server=$!
    ready $server
    # shellcheck disable=SC2086
    on right ib_write_bw $1 192.0.2.7 >out.client 2>&1 &
    client=$!
    payload
}

sent() {
    ip netns exec right cat /sys/class/net/eth0/statistics/tx_packets
}

# payload: waits until the client has sent 1000 packets more.
payload() {
    local before
    before=$(sent)
    until [ "$(sent)" -gt $((before + 1000)) ]; do
        kill -0 $client 2>/dev/null || fail "the client has ended early"
        sleep 0.02
    done
}

# notices NAME PID: waits for the end of a program, which must say that its peer did not answer: IBV_WC_RETRY_EXC_ERR.
notices() {
    if wait "$2"; then fail "the $1 has lost its peer and ended well"; fi
    grep -q 'Failed status 12' "out.$1" || fail "the $1 has not completed with status 12"
}
