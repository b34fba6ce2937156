#!/usr/bin/env bash
# The 72-epoch recipe of five phases: ResNet-50 on ImageNet, global batch 4,096 on 128
# ranks, two on each of 64 nodes (Codreanu et al. 2017, arXiv:1711.04291). The source
# started each phase by hand, with the weights of the one before. Here one run trains all
# five, and keeps a checkpoint at the end of each. To start a phase by hand, in another
# folder, with the final weights of the phase before it (for collapse those of step 21,050):
#
#   MODEL_DIR=OTHER launch/jobs/train_64_nodes_collapse.sh --first_phase=collapse \
#     --initial_weights=MODEL/checkpoints/step-00021050
#
# For MPICH and Intel MPI, from a login node with a host file or inside an allocation.
# For Slurm: sbatch launch/jobs/train_64_nodes_collapse.slurm
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=site.sh
source "$(dirname "${BASH_SOURCE[0]}")/site.sh"

# 32 examples per rank x 128 ranks = 4,096. Each rank has a socket of 24 cores: 22 threads
# compute, Horovod and the input pipeline share the other two.
set_launcher 128 2
exec "${launcher[@]}" python "$REPOSITORY/resnet/resnet_main.py" \
  --recipe=collapse_72ep_4k \
  --num_intra_threads 22 --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir="${MODEL_DIR:-$OUTPUT_DIR/model_collapse_72ep}" \
  "$@"
