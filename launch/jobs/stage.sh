#!/usr/bin/env bash
# Copies records from a shared folder to the disk of this node, where it runs as one
# process per node. Of a set in PARTS parts, each node copies one (--shard_by=file);
# with PARTS=1 all of them.
#
#   stage.sh SHARED LOCAL PARTS
set -euo pipefail

shared=$1 local=$2 parts=$3
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
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
# The files that were copied by this host. When a job starts again, its nodes may have other
# numbers: of a divided set, only the own part may stay, since each file has to be on one
# node. Files that somebody else has put there are left alone.
copied=$local/.staged.$(uname -n) # HOSTNAME may be that of the host of the submission.
touch "$copied"
if [ "$parts" -gt 1 ]; then
  comm -23 <(sort "$copied") <(sort <<<"$files") | while IFS= read -r file; do
    rm -f "$local/$file"
  done
fi
# The list has only files that are there or come now: one that was deleted and that somebody
# else puts there later is not ours.
{
  while IFS= read -r file; do
    [ ! -e "$local/$file" ] || echo "$file"
  done <"$copied"
  while IFS= read -r file; do
    [ -e "$local/$file" ] || echo "$file"
  done <<<"$files"
} >"$copied.new"
mv "$copied.new" "$copied"
# rsync copies only what isn't there yet, and never leaves half a file under its name.
if command -v rsync >/dev/null; then
  rsync -a --files-from=- "$shared" "$local" <<<"$files"
else
  tar -C "$shared" -cf - -T - <<<"$files" | tar -C "$local" -xf -
fi
