#!/usr/bin/env bash
# Downloads all that `make venv` installs, also with a site's MPI, into a folder, with what it
# has compiled in VENV. With the folder, `make venv WHEELS=FOLDER` needs no network, on a
# machine of the same kind and with the same version of Python.
#
#   install/wheels.sh VENV FOLDER
set -euo pipefail

HERE=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
set -- "$(CDPATH='' cd "$1" && pwd)" "$2"
python=$1/bin/python
mkdir -p "$2"
folder=$(CDPATH='' cd "$2" && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# shellcheck source-path=SCRIPTDIR source=pip_settings.sh
. "$HERE/pip_settings.sh"
take_pip_sources "$python"

download() {  # download [OPTION ...]: what locks name, checked by the hashes in them.
  "$python" -m pip download -qq --disable-pip-version-check --no-deps \
    --no-build-isolation --require-hashes -d "$folder" "$@"
}
setting() { sed -n "s/^$1=//p" "$HERE/build_horovod.sh"; }

cd "$HERE/.."
for lock in requirements requirements-{dev,parquet,build} requirements-docs install/requirements-{mpi4py,wheel}; do
  download -r "$lock.txt"
done
# As source: mpi4py is built for a site's MPI, Horovod always.
awk '/^[a-zA-Z0-9]/ { is_it = /^mpi4py==/ } is_it' requirements.txt >"$temporary/mpi4py.txt"
download --no-binary mpi4py -r "$temporary/mpi4py.txt"
printf 'horovod==%s --hash=sha256:%s\n' "$(setting VERSION)" "$(setting SDIST_SHA256)" \
  >"$temporary/horovod.txt"
download --no-binary horovod -r "$temporary/horovod.txt"
horovod=$(bash install/build_horovod.sh "$1" | tail -n 1)
cp -R "$(dirname "$horovod")" resnet/native/libresnet_ops.{so,key} "$folder"
du -sh "$folder" | awk -v num="$(find "$folder" -type f | wc -l)" \
  '{ print "[wheels] " num " files, " $1 "B, in " $2 }'
