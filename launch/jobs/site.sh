#!/usr/bin/env bash
# The settings of a site, which the scripts in this folder source: edit them here, or set
# them in the environment.
set -euo pipefail

# This clone, on a file system that all nodes see at the same path.
REPOSITORY=${REPOSITORY:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
# The environment that `make venv` has created there.
VENV=${VENV:-$REPOSITORY/.venv}
# The records of data_prep/imagenet_to_tfrecords.py, at this path on every node.
DATA_DIR=${DATA_DIR:-/scratch/imagenet/records}
# A shared folder for checkpoints and logs, in which each run creates its own folder.
OUTPUT_DIR=${OUTPUT_DIR:-/project/resnet}
# A file with one host name per line; empty inside an allocation, whose nodes mpirun finds.
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
