#!/usr/bin/env bash
# What a site must change, for the ready scripts beside this file, which source it: edit
# it here, or set it in the environment.
set -euo pipefail

# This clone, on a file system that all nodes see at the same path.
REPOSITORY=${REPOSITORY:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
# The environment that `make venv` made there.
VENV=${VENV:-$REPOSITORY/.venv}
# The records that data_prep/imagenet_to_tfrecords.py made, on every node at this path.
DATA_DIR=${DATA_DIR:-/scratch/imagenet/records}
# Where checkpoints and logs go: a shared folder, in which each run makes its own.
OUTPUT_DIR=${OUTPUT_DIR:-/project/resnet}
# One host name a line; empty inside an allocation whose nodes mpirun finds itself.
HOSTFILE=${HOSTFILE-}

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
