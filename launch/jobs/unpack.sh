#!/usr/bin/env bash
# Unpacks an archive of `make bundle` in a folder on the disk of this node, where it runs as
# one process per node. If the folder is there, it is complete, and nothing is done.
#
#   unpack.sh ARCHIVE FOLDER
set -euo pipefail

archive=$1 folder=$2
mkdir -p -m 700 "$(dirname "$folder")"
# /tmp belongs to everybody: what others have put there must not be run.
for one in "$(dirname "$folder")" "$folder"; do
  [ ! -e "$one" ] || [ -O "$one" ] || {
    echo "$0: $one on $(hostname) belongs to somebody else: set LOCAL_DIR." >&2
    exit 2
  }
done
[ ! -d "$folder" ] || exit 0
unpacking=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$unpacking"' EXIT
tar --no-same-owner -xf "$archive" -C "$unpacking"
# If another job of this node was faster, its folder stays.
mv -T "$unpacking" "$folder" 2>/dev/null || [ -d "$folder" ]
