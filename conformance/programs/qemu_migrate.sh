#!/bin/sh
# A virtual machine without a system moves from one QEMU to another over RDMA: qemu_migrate.sh HOST PORT CAPABILITY=on|off
# The machine never runs: what moves is its memory, 64 MiB.
set -e
host=$1 port=$2 capability=${3%=*} on=${3#*=}
from= to=
machine="qemu-system-x86_64 -S -m 64 -display none -serial none -nodefaults -machine accel=tcg"
$machine -monitor unix:to.sock,server=on,wait=off -incoming "rdma:$host:$port" &
to=$!
trap 'kill $to $from 2> /dev/null || true' EXIT
$machine -monitor unix:from.sock,server=on,wait=off &
from=$!
monitor() {
	python3 - "$@" <<'END'
import socket, sys, time
name, commands = sys.argv[1], sys.argv[2:]
monitor = socket.socket(socket.AF_UNIX)
for _ in range(300):
    try:
        monitor.connect(name)
        break
    except OSError:
        time.sleep(0.05)
def answer():
    text = b""
    while not text.endswith(b"(qemu) "):
        part = monitor.recv(65536)
        if not part:
            sys.exit(f"{name}: closed after {text}")
        text += part
    return text.decode()
answer()
for command in commands:
    monitor.sendall(command.encode() + b"\n")
    print(answer())
END
}
monitor to.sock "migrate_set_capability $capability $on"
monitor from.sock "migrate_set_capability $capability $on" "migrate -d rdma:$host:$port"
for _ in $(seq 100); do
	state=$(monitor from.sock "info migrate")
	case $state in
	*"Migration status: completed"*) echo "migrated"; echo "$state"; exit 0 ;;
	*"Migration status: failed"*) echo "$state"; exit 1 ;;
	esac
	sleep 0.1
done
echo "not done: $state"
exit 1
