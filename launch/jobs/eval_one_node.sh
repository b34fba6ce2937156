#!/usr/bin/env bash
# Evaluates a run on all validation images, by 1 process on 1 node with 48 cores each.
# Each has 48 cores: 46 threads compute, Horovod and the input pipeline share the other
# 2.
# Written by: python launch/plan.py --job=eval --sockets=2 --cores_per_socket=24 --ranks_per_node=1 --run_name=model_batch_24k_90ep --clone= --print=script
# module load ...   # The modules that `make venv` used; above `set`, since many modules
#                   # use unset variables.
set -euo pipefail

REPOSITORY=${REPOSITORY:-$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
export REPOSITORY
[ -f "$REPOSITORY/launch/jobs/site.sh" ] || {
  echo "$0: there is no clone of resnet-cpu in $REPOSITORY: set REPOSITORY." >&2
  exit 2
}
# shellcheck source-path=SCRIPTDIR source=site.sh
source "$REPOSITORY/launch/jobs/site.sh"

export OMP_NUM_THREADS=46
exec python "$REPOSITORY/eval/resnet_eval.py" \
  --eval_batch_size 200 \
  --num_intra_threads 46 \
  --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="${MODEL_DIR:-$OUTPUT_DIR/model_batch_24k_90ep}" \
  --use_tpu=False \
  --kmp_blocktime 1 \
  "$@"
