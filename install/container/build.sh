#!/usr/bin/env bash
# Sets up the clone in /opt/resnet-cpu, as root in a container of Debian 12: what `make venv`
# does anywhere, from the same locks. Both recipes of this folder call it.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends \
  ca-certificates g++ make procps python3 python3-venv
# Apptainer copies also what was made in the clone, on another system.
make -C /opt/resnet-cpu clean
make -C /opt/resnet-cpu venv
rm -rf /var/lib/apt/lists/* ~/.cache
