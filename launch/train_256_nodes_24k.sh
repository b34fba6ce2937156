#!/usr/bin/env bash
# The published run: ResNet-50, 90 epochs of ImageNet, global batch 24,576 on 512 ranks,
# two on each of 256 nodes with two 24-core Xeon 8160 (Intel and SURFsara, 2018).
#
# For MPICH and Intel MPI, from a login node with a host file or inside an allocation.
# For Slurm: sbatch launch/train_256_nodes_24k.slurm
set -euo pipefail

# --- What a site must change (here, or in the environment) ----------------------------
# This clone, on a file system that all nodes see at the same path.
REPOSITORY=${REPOSITORY:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
# The environment that `make venv` made there.
VENV=${VENV:-$REPOSITORY/.venv}
# The records that data_prep/imagenet_to_tfrecords.py made, on every node at this path.
DATA_DIR=${DATA_DIR:-/scratch/imagenet/records}
# Where checkpoints and logs go: a shared folder, in which the run makes its own.
OUTPUT_DIR=${OUTPUT_DIR:-/project/resnet}
# One host name a line; empty inside an allocation whose nodes mpirun finds itself.
HOSTFILE=${HOSTFILE-}

# --- The run; other node counts need another batch, or another batch per rank ---------
# 48 examples a rank x 512 ranks = 24,576. 4,680 steps = 90 epochs of 52 steps. Each rank
# has a socket of 24 cores: 22 threads compute, Horovod's and the input's share the rest.
[ -x "$VENV/bin/python" ] || {
  echo "$0: there is no $VENV/bin/python: run 'make venv' in $REPOSITORY, or set VENV." >&2
  exit 2
}
for folder in "$DATA_DIR" "$OUTPUT_DIR"; do
  [ -d "$folder" ] || {
    echo "$0: there is no folder $folder: set DATA_DIR and OUTPUT_DIR." >&2
    exit 2
  }
done
if [ -n "$HOSTFILE" ] && [ ! -f "$HOSTFILE" ]; then
  echo "$0: there is no host file $HOSTFILE: set HOSTFILE, or leave it empty." >&2
  exit 2
fi

export PATH=$VENV/bin:$PATH
exec mpirun ${HOSTFILE:+-f "$HOSTFILE"} -np 512 -ppn 2 \
  python "$REPOSITORY/resnet/resnet_main.py" \
  --train_batch_size 24576 \
  --train_steps 4680 \
  --num_intra_threads 22 --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir "$OUTPUT_DIR/model_batch_24k_90ep" \
  --use_tpu=False --kmp_blocktime 1
