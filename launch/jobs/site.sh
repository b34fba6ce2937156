#!/usr/bin/env bash
# The settings of a site, which the scripts in this folder source: edit them here, or set
# them in the environment.
set -euo pipefail

# This clone, on a file system that all nodes see at the same path.
REPOSITORY=${REPOSITORY:-$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
# The environment that `make venv` has created there.
VENV=${VENV:-$REPOSITORY/.venv}
# The records of data_prep/imagenet_to_tfrecords.py, at this path on every node.
DATA_DIR=${DATA_DIR:-/scratch/imagenet/records}
# A shared folder for checkpoints and logs, in which each run creates its own folder.
OUTPUT_DIR=${OUTPUT_DIR:-/project/resnet}
# A folder on the disk of each node, in which a job unpacks an archive of `make bundle`.
LOCAL_DIR=${LOCAL_DIR:-${TMPDIR:-/tmp}/resnet-cpu-$(id -u)}
# A file with one host name per line; empty inside an allocation, whose nodes mpirun finds.
HOSTFILE=${HOSTFILE-}
# The launcher: mpirun of MPICH or Intel MPI or, in a Slurm job, srun. The latter needs an
# MPI that was built for Slurm (`srun --mpi=list`; SLURM_MPI_TYPE=pmi2 names the plugin).
LAUNCHER=${LAUNCHER:-mpirun}

[ -x "$VENV/bin/python" ] || {
  echo "$0: there is no $VENV/bin/python: run 'make venv' in $REPOSITORY, or set VENV." >&2
  exit 2
}
# DATA_DIR may be on the disks of the nodes alone: the program itself looks for it there.
[ -d "$OUTPUT_DIR" ] || {
  echo "$0: there is no folder $OUTPUT_DIR: set OUTPUT_DIR." >&2
  exit 2
}
if [ -n "$HOSTFILE" ] && [ ! -f "$HOSTFILE" ]; then
  echo "$0: there is no host file $HOSTFILE: set HOSTFILE, or leave it empty." >&2
  exit 2
fi
export PATH=$VENV/bin:$PATH
# The ranks bind themselves. Intel MPI would pin them in another way, and no other MPI
# reads this variable.
export I_MPI_PIN=${I_MPI_PIN:-off}

# set_launcher NUM_RANKS RANKS_PER_NODE [cyclic]: sets the array `launcher`, the start of a
# command. With `cyclic`, successive ranks are on different nodes. The ranks of a node
# divide its cores by themselves, so srun must not bind them.
# From Slurm 22.05 to 23.02, a task of srun has one core, unless SRUN_CPUS_PER_TASK is set.
# Hydra's mpirun starts one task on each node, for all of its ranks there. Since 23.11,
# srun takes the cores from SLURM_CPUS_PER_TASK again, and mpirun's task gets all of them.
set_launcher() {
  local cores=
  case $LAUNCHER in
  mpirun)
    launcher=(mpirun)
    if [ -n "${I_MPI_ROOT:-}" ]; then  # Intel's mpirun is a script, which a signal would end
      launcher=(mpiexec.hydra)         # instead of the ranks. It has Slurm start the proxies.
      [ -z "${SLURM_JOB_ID:-}" ] || export I_MPI_HYDRA_BOOTSTRAP=${I_MPI_HYDRA_BOOTSTRAP:-slurm}
    fi
    launcher+=(${HOSTFILE:+-f "$HOSTFILE"} -np "$1" -ppn "$2")
    cores=${SLURM_CPUS_ON_NODE:-}
    ;;
  srun)
    launcher=(srun --ntasks="$1" --cpu-bind=none)
    if [ "${3-}" = cyclic ]; then
      launcher+=(--distribution=cyclic)
    else
      launcher+=(--ntasks-per-node="$2")
    fi
    cores=${SLURM_CPUS_PER_TASK:-}
    ;;
  *)
    echo "$0: LAUNCHER must be mpirun or srun; got $LAUNCHER." >&2
    exit 2
    ;;
  esac
  if [ -n "$cores" ]; then export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$cores}; fi
}

# set_passed_on: sets the array `passed_on`, the options of Open MPI's mpirun that pass on
# the variables of the environment to other hosts. Hydra and srun pass on all by themselves.
set_passed_on() {
  local name
  passed_on=(-x PATH)
  for name in $(compgen -e); do
    case $name in
    LD_LIBRARY_PATH | LD_PRELOAD | XDG_CACHE_HOME | PYTHON* | RESNET_* | HOROVOD_* | UCX_* | \
      FI_* | OMP_* | KMP_* | MKL_* | ONEDNN_* | DNNL_* | TF_* | MALLOC_*)
      passed_on+=(-x "$name")
      ;;
    esac
  done
}

# run_unpacked ARCHIVE: has one process on each node, by `launcher`, unpack an archive of
# `make bundle` in LOCAL_DIR. From then on, the job runs the programs and the Python there.
# Another archive is unpacked beside this one, which other jobs of the node may be using.
run_unpacked() {
  local folder
  folder=$LOCAL_DIR/$(stat -L -c %Y-%s "$1")
  "${launcher[@]}" "$REPOSITORY/launch/jobs/unpack.sh" "$1" "$folder"
  REPOSITORY=$folder/resnet-cpu
  VENV=$REPOSITORY/.venv
  export PATH=$VENV/bin:$PATH
}
