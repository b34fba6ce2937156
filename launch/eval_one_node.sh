#!/usr/bin/env bash
# The published evaluation: all 50,000 validation images in 250 batches of 200, on one
# node with two 24-core Xeon 8160. For Slurm: sbatch launch/eval_one_node.slurm
set -euo pipefail

# --- What a site must change (here, or in the environment) ----------------------------
# This clone, and the environment that `make venv` made in it.
REPOSITORY=${REPOSITORY:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
VENV=${VENV:-$REPOSITORY/.venv}
# The records that data_prep/imagenet_to_tfrecords.py made.
DATA_DIR=${DATA_DIR:-/scratch/imagenet/records}
# The folder that the training was given as OUTPUT_DIR.
OUTPUT_DIR=${OUTPUT_DIR:-/project/resnet}

# --- The run: 48 cores, of which 46 compute -------------------------------------------
MODEL_DIR=$OUTPUT_DIR/model_batch_24k_90ep
[ -x "$VENV/bin/python" ] || {
  echo "$0: there is no $VENV/bin/python: run 'make venv' in $REPOSITORY, or set VENV." >&2
  exit 2
}
for folder in "$DATA_DIR" "$MODEL_DIR"; do
  [ -d "$folder" ] || {
    echo "$0: there is no folder $folder: set DATA_DIR and OUTPUT_DIR." >&2
    exit 2
  }
done

export PATH=$VENV/bin:$PATH
export OMP_NUM_THREADS=46
exec python "$REPOSITORY/eval/resnet_eval.py" \
  --eval_batch_size 200 \
  --num_intra_threads 46 --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="$MODEL_DIR" \
  --use_tpu=False --kmp_blocktime 1
