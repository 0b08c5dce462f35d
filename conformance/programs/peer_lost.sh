# peer_lost.sh PROGRAM...: a program whose peer is killed is to end by itself, with a failure that is its own.
"$@"
status=$?
if [ "$status" -eq 0 ] || [ "$status" -ge 99 ]; then
    echo "status $status"
    exit 1
fi
echo "the program noticed"
