# nccl.sh setup FOLDER VERSION: installs the wheel nvidia-nccl-cu11, and builds the programs.
# nccl.sh run FOLDER VERSION PLUGIN WHAT: runs nccl_network WHAT with this network plugin, and for a communicator with a stub of
# the CUDA driver.
set -eu
programs=$(dirname "$0")
lib=$2/nvidia-nccl-cu11-$3/nvidia/nccl/lib
if [ "$1" = setup ]; then
    sh "$programs/wheel.sh" "$2" nvidia-nccl-cu11 "$3"
    cc -O1 -Wall -Wextra -Werror -o nccl_network "$programs/nccl_network.c" -ldl
    mkdir -p stub
    cc -O1 -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libcuda.so.1 -o stub/libcuda.so.1 "$programs/cuda_stub.c"
    exit
fi
[ "$5" = id ] || lib=$lib:$PWD/stub
export LD_LIBRARY_PATH="$lib" NCCL_NET_PLUGIN="$4" NCCL_NET=Verbatim NCCL_DEBUG=INFO
exec ./nccl_network "$5"
