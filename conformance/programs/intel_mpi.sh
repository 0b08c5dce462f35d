# intel_mpi.sh setup FOLDER VERSION: installs the wheel impi-rt with its programs, and compiles programs for MPICH's ABI.
# intel_mpi.sh run FOLDER VERSION PROGRAM...: runs a program of four ranks on its libfabric's verbs provider.
set -eu
what=$1 to=$2/impi-rt-$3
shift 3
if [ "$what" = setup ]; then
    if [ ! -e "$to" ]; then
        mkdir -p "${to%/*}"
        new=$(mktemp -d "$to.XXXXXX")
        # Its libraries are no Python packages, which an installation with --target leaves out.
        /usr/bin/python3 -m pip --disable-pip-version-check install -q --no-deps --ignore-installed --prefix "$new" \
            "impi-rt==${to##*-}"
        root=$(find "$new" -name libmpi.so.12 -printf '%h\n' | head -n 1)
        # The name that MPICH's compiler links to; both libraries have the ABI of MPICH.
        ln -s libmpi.so.12 "$root/libmpich.so.12"
        # Another run may have been faster.
        mv -T "$new" "$to" || rm -r "$new"
    fi
    for p in ring collectives window; do
        mpicc.mpich -O1 -o "${p}_intel" "$(dirname "$0")/mpi_$p.c"
    done
    exit
fi
lib=$(find "$to" -name libmpi.so.12 -printf '%h\n' | head -n 1)
export I_MPI_ROOT="${lib%/*}" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib"
export FI_PROVIDER_PATH="$lib/libfabric/prov" FI_PROVIDER=verbs I_MPI_FABRICS=ofi I_MPI_HYDRA_BOOTSTRAP=fork
exec "${lib%/*}/bin/mpiexec.hydra" -n 4 "$@"
