#!/usr/bin/env bash
# Trains the recipe collapse_72ep_4k (Codreanu et al. 2017, arXiv:1711.04291, with the
# solvers of sara-nl/caffe (resnet50_custom_lr): 64 nodes, 128 ranks of 32 examples) on
# 64 nodes with 48 cores each. 32 examples per rank x 128 ranks = 4,096; 22,610 steps =
# 72.29 epochs. Each has 24 cores: 22 threads compute, Horovod and the input pipeline
# share the other 2.
# Written by: python launch/plan.py --num_nodes=64 --sockets=2 --cores_per_socket=24 --recipe=collapse_72ep_4k --run_name=model_collapse_72ep --clone= --print=script
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

set_launcher 128 2
exec "${launcher[@]}" python "$REPOSITORY/resnet/resnet_main.py" \
  --recipe=collapse_72ep_4k \
  --num_intra_threads 22 \
  --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="${MODEL_DIR:-$OUTPUT_DIR/model_collapse_72ep}" \
  "$@"
