#!/usr/bin/env bash
# The published run: ResNet-50, 90 epochs of ImageNet, global batch 24,576 on 512 ranks,
# two on each of 256 nodes with two 24-core Xeon 8160 (Intel and SURFsara, 2018).
#
# For MPICH and Intel MPI, from a login node with a host file or inside an allocation.
# For Slurm: sbatch launch/jobs/train_256_nodes_24k.slurm
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=site.sh
source "$(dirname "${BASH_SOURCE[0]}")/site.sh"

# 48 examples per rank x 512 ranks = 24,576. 4,680 steps = 90 epochs of 52 steps. On another
# number of nodes, change the global batch or the batch per rank. Each rank has a socket of
# 24 cores: 22 threads compute, Horovod and the input pipeline share the other two.
set_launcher 512 2
exec "${launcher[@]}" python "$REPOSITORY/resnet/resnet_main.py" \
  --train_batch_size 24576 \
  --train_steps 4680 \
  --num_intra_threads 22 --num_inter_threads 2 \
  --data_dir="$DATA_DIR" \
  --model_dir "$OUTPUT_DIR/model_batch_24k_90ep" \
  --use_tpu=False --kmp_blocktime 1 \
  "$@"
