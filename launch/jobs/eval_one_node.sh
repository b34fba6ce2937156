#!/usr/bin/env bash
# The published evaluation: all 50,000 validation images in 250 batches of 200, on one
# node with two 24-core Xeon 8160. For Slurm: sbatch launch/jobs/eval_one_node.slurm
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=site.sh
source "$(dirname "${BASH_SOURCE[0]}")/site.sh"

# 46 of the 48 cores compute.
export OMP_NUM_THREADS=46
exec python "$REPOSITORY/eval/resnet_eval.py" \
  --eval_batch_size 200 \
  --num_intra_threads 46 --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="$OUTPUT_DIR/model_batch_24k_90ep" \
  --use_tpu=False --kmp_blocktime 1 \
  "$@"
