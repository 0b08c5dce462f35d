#!/bin/sh
# A target of iSCSI over RDMA (iSER) with a disk of 16 MiB, until it is interrupted: iser_target.sh PORT INITIATOR...
# tgt lets in only initiators that it has been told of, by address and by name.
set -e
port=$1
shift
# The name of its socket for tgtadm: a short one, relative to the folder of the programs.
export TGT_IPC_SOCKET=tgt
rm -f tgt.* disk
truncate -s 16M disk
tgtd --foreground --control-port 1 --iser "port=$port,pool_sz_mb=128" --iscsi "portal=127.0.0.1:$port" &
target=$!
trap 'kill -9 $target 2> /dev/null || true' EXIT
trap 'exit 0' INT TERM
admin() {
	tgtadm --control-port 1 --lld iser "$@"
}
for _ in $(seq 100); do
	admin --op show --mode system > /dev/null 2>&1 && break
	sleep 0.05
done
admin --op new --mode target --tid 1 --targetname iqn.2003-01.org.example:disk
admin --op new --mode logicalunit --tid 1 --lun 1 --backing-store "$PWD/disk"
admin --op bind --mode target --tid 1 --initiator-address ALL
for initiator; do
	admin --op bind --mode target --tid 1 --initiator-name "$initiator"
done
echo ready
wait $target
