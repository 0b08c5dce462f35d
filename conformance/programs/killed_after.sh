# killed_after.sh SECONDS PROGRAM...: runs a program, and kills it after so long. The kill is no failure.
seconds=$1
shift
"$@" &
program=$!
sleep "$seconds"
kill -KILL "$program"
wait "$program"
exit 0
