# killed_after.sh SECONDS TEXT PROGRAM...: runs a program, and kills it so long after it has printed the text. The kill is
# no failure.
seconds=$1
text=$2
shift 2
printed=$(mktemp)
stdbuf -oL "$@" >"$printed" 2>&1 &
program=$!
until grep -q "$text" "$printed"; do
    # What has ended prints no more.
    if ! kill -0 "$program" 2>/dev/null; then
        cat "$printed"
        exit 1
    fi
    sleep 0.1
done
sleep "$seconds"
kill -KILL "$program"
wait "$program"
cat "$printed"
rm "$printed"
exit 0
