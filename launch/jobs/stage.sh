#!/usr/bin/env bash
# Copies records from a shared folder to the disk of this node, where it runs as one
# process per node. Of a set in PARTS parts, each node copies one (--shard_by=file);
# with PARTS=1 all of them.
#
#   stage.sh SHARED LOCAL PARTS
set -euo pipefail

shared=$1 local=$2 parts=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
node=0
if [ "$parts" -gt 1 ]; then
  # The number of this process, as Hydra, Open MPI or Slurm pass it.
  node=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-}}}
  [ -n "$node" ] || {
    echo "$0: expected to be started by mpirun or srun; found no number of a process." >&2
    exit 2
  }
fi
files=$(python "$here/place_shards.py" --data_dir="$shared" --num_nodes="$parts" --node="$node")
mkdir -p "$local"
# rsync copies only what isn't there yet, and never leaves half a file under its name.
if command -v rsync >/dev/null; then
  rsync -a --files-from=- "$shared" "$local" <<<"$files"
else
  tar -C "$shared" -cf - -T - <<<"$files" | tar -C "$local" -xf -
fi
