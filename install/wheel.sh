#!/usr/bin/env bash
# Builds one wheel with all that is compiled, for every Python that TensorFlow is made for:
# the C++ ops and both Horovod libraries use none of Python's interface.
#
#   install/wheel.sh VENV FOLDER
#
# It runs where glibc and libstdc++ are as new as those of this machine: the wheel's name
# says how new. To support older systems, run `make wheel` on one.
set -euo pipefail

CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(CDPATH='' cd "$1" && pwd)/bin/python
mkdir -p "$2"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# shellcheck source-path=SCRIPTDIR source=pip_settings.sh
. install/pip_settings.sh
take_pip_sources "$python"
tools=$temporary/tools
"$python" -m pip install -qq --no-deps --require-hashes --target "$tools" \
  -r install/requirements-wheel.txt
rm -rf build/lib build/bdist.*  # Modules of an earlier version would get into the wheel.
"$python" -m pip wheel --quiet --no-deps --no-build-isolation -w "$temporary" .
# TensorFlow's and MPI's libraries are those that the process has loaded already.
PYTHONPATH=$tools PATH=$tools/bin:$PATH "$python" -m auditwheel repair -w "$2" \
  --exclude 'libtensorflow*' --exclude 'libmpi.so.*' "$temporary"/resnet_cpu-*.whl 2>"$temporary/log" ||
  { tail -n 5 "$temporary/log" >&2; exit 1; }
ls -sh "$2"/resnet_cpu-*.whl
