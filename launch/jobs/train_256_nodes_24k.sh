#!/usr/bin/env bash
# Trains the recipe tpu_90ep_24k (SURFsara, Intel and Dell 2018: 256 nodes, 512 ranks of
# 48 examples) on 256 nodes with 48 cores each. 48 examples per rank x 512 ranks =
# 24,576; 4,680 steps = 89.77 epochs. Each has 24 cores: 22 threads compute, Horovod and
# the input pipeline share the other 2.
# Written by: python launch/plan.py --num_nodes=256 --sockets=2 --cores_per_socket=24 --run_name=model_batch_24k_90ep --clone= --print=script
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

set_launcher 512 2
exec "${launcher[@]}" python "$REPOSITORY/resnet/resnet_main.py" \
  --train_batch_size 24576 \
  --train_steps 4680 \
  --num_intra_threads 22 \
  --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="${MODEL_DIR:-$OUTPUT_DIR/model_batch_24k_90ep}" \
  --use_tpu=False \
  --kmp_blocktime 1 \
  "$@"
