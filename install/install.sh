#!/usr/bin/env bash
# Makes .venv in this clone: the pinned packages, Horovod, and this project. Called by
# `make venv`; without root. A call that finds .venv ready ends at once.
#
# Read from the environment, and remembered in .venv/choices for the calls after it:
#   PYTHON   the Python to use, 3.10 to 3.13 (else python3, else the first that fits)
#   MPICXX   a site's MPI C++ compiler wrapper (else PyPI's MPICH is installed)
#   MPICC    its C compiler wrapper            (else the one beside MPICXX)
#   MPIRUN   its launcher                      (else the mpirun beside MPICXX)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
CHOICES=$VENV/choices        # What .venv was made with.
READY=$VENV/ready            # Holds the key below; written last.
UNFINISHED=$VENV/unfinished  # There while .venv is being changed.
DISK_GB=6                    # .venv has about 3 GB, pip's downloads and unpacking the rest.
TEMPORARY_GB=2               # The largest package while pip unpacks it, or Horovod's build.

fail() {
  echo "make venv: $*" >&2
  exit 1
}
say() { echo "[venv] $*"; }

cd "$ROOT"
exec 8<"$ROOT"
flock 8  # A second call at the same time waits here, then finds .venv ready.

# --- What is asked for: the environment, else what .venv was made with ----------------
choice() { if [ -f "$CHOICES" ]; then sed -n "s/^$1=//p" "$CHOICES"; fi; }

new_mpi=${MPICXX:+yes}
asked_python=${PYTHON:-$(choice ASKED_PYTHON)}
PYTHON=${PYTHON:-$(choice PYTHON)}
MPICXX=${MPICXX:-$(choice MPICXX)}
if [ -z "$new_mpi" ]; then
  MPICC=${MPICC:-$(choice MPICC)}
  MPIRUN=${MPIRUN:-$(choice MPIRUN)}
fi
if [ -n "$MPICXX" ]; then
  command -v "$MPICXX" >/dev/null || fail "there is no program MPICXX=$MPICXX."
  MPICXX=$(command -v "$MPICXX")
  # The wrappers of one MPI lie in one folder and differ in the name's end.
  folder=$(cd "$(dirname "$MPICXX")" && pwd)
  MPICXX=$folder/$(basename "$MPICXX")
  if [ -z "${MPICC:-}" ]; then
    case $(basename "$MPICXX") in
    mpiicpx) MPICC=$folder/mpiicx ;;
    mpiicpc) MPICC=$folder/mpiicc ;;
    CC) MPICC=$folder/cc ;;
    *) MPICC=$folder/$(basename "$MPICXX" | sed -E 's/c\+\+|cxx|CC$/cc/') ;;
    esac
  fi
  if [ -z "${MPIRUN:-}" ]; then  # Debian's mpicxx.openmpi has mpirun.openmpi, for one.
    ending=$(basename "$MPICXX" | sed -nE 's/^[^.]*(\..*)/\1/p')
    MPIRUN=$folder/mpirun
    for name in "mpirun$ending" mpirun "mpiexec$ending" mpiexec; do
      if [ -x "$folder/$name" ]; then MPIRUN=$folder/$name && break; fi
    done
  fi
else
  MPICC='' MPIRUN=''
fi

python_version() {  # Prints the version of a Python that can be used, else its fault.
  "$1" - 2>/dev/null <<'PY' || echo "cannot be run"
import platform, sys, sysconfig
version = platform.python_version()
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    version = f"is {version}"
elif platform.python_implementation() != "CPython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    version = "is not the usual CPython, for which TensorFlow is made"
else:
    try:
        import ensurepip, venv
    except ImportError:
        version = f"lacks its venv module (Debian and Ubuntu: the package python{version[:4]}-venv)"
print(version)
PY
}

key() {  # Of everything that decides what .venv holds.
  {
    echo "$VENV" "$1" "$MPICXX" "$MPICC" "$MPIRUN"
    cat requirements.txt requirements-dev.txt requirements-build.txt setup.py \
      pyproject.toml install/*.sh install/*.txt
  } | sha256sum | cut -c1-64
}

build_ops() {  # The project's own C++ ops; quick if they are there.
  bash install/build_native.sh "$VENV" ||
    say "the C++ ops of resnet/native did not build (see above): slower stock ops stand in."
}

# --- Nothing to do? -------------------------------------------------------------------
made_with_version=$(choice VERSION)
if [ -f "$READY" ] && [ -x "$VENV/bin/python" ] && [ "$asked_python" = "$(choice ASKED_PYTHON)" ] &&
  [ "$(cat "$READY")" = "$(key "$made_with_version")" ]; then
  build_ops
  exit 0
fi

# --- Checks, before anything is downloaded --------------------------------------------
started=$SECONDS
[ "$(uname -s)" = Linux ] || fail "needs Linux; this is $(uname -s)."
case $(uname -m) in
x86_64 | aarch64) ;;
*) fail "TensorFlow is made for x86_64 and aarch64; this is $(uname -m)." ;;
esac
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2) || true
[ "$(printf '%s\n2.28\n' "${glibc:-0}" | sort -V | head -n 1)" = 2.28 ] ||
  fail "the packages need glibc 2.28 or newer; this system has ${glibc:-none}."

candidates=(python3 python3.12 python3.11 python3.13 python3.10)
if [ -n "$PYTHON" ]; then candidates=("$PYTHON"); fi
faults='' version=''
for candidate in "${candidates[@]}"; do
  command -v "$candidate" >/dev/null || { faults+=", $candidate is not there" && continue; }
  version=$(python_version "$candidate")
  if [[ $version == 3.* ]]; then
    # Where it really is, so that a later call with another PATH takes the same one.
    PYTHON=$("$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
    break
  fi
  faults+=", $candidate $version" version=''
done
[ -n "$version" ] ||
  fail "needs Python 3.10, 3.11, 3.12 or 3.13 (${faults#, }). Name one: make venv PYTHON=/path/to/python3.12"

command -v make >/dev/null || fail "needs make, to build Horovod (Debian and Ubuntu: apt install make)."
if [ -z "${CXX:-}" ]; then
  CXX=g++
  command -v g++ >/dev/null || CXX=c++
fi
export CXX
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
first_error() { grep -m 1 . "$temporary/errors" || echo "it says nothing"; }
cat >"$temporary/check.cpp" <<'CPP'
#include <optional>
#include <string_view>
int main() {
  std::optional<std::string_view> word = "C++17";
  if constexpr (__cplusplus >= 201703L) return word->size() == 5 ? 0 : 1;
}
CPP
# CXX may hold options, so it is not quoted.
# shellcheck disable=SC2086
$CXX -std=c++17 "$temporary/check.cpp" -o "$temporary/check" 2>"$temporary/errors" ||
  fail "needs a C++17 compiler, to build Horovod; '$CXX' did not compile a small program ($(first_error)). Name one: make venv CXX=/path/to/g++"
"$temporary/check" ||
  fail "cannot run a program compiled in ${TMPDIR:-/tmp}. Name a folder where that is allowed: make venv TMPDIR=/path"

if [ -n "$MPICXX" ]; then
  [ -x "$(command -v "$MPICC")" ] ||
    fail "there is no C compiler wrapper $MPICC beside MPICXX. Name it: make venv MPICXX=$MPICXX MPICC=/path/to/mpicc"
  [ -x "$(command -v "$MPIRUN")" ] ||
    fail "there is no launcher $MPIRUN beside MPICXX. Name it: make venv MPICXX=$MPICXX MPIRUN=/path/to/mpirun"
  printf '#include <mpi.h>\nint main() { return MPI_Init(nullptr, nullptr); }\n' >"$temporary/mpi.cpp"
  "$MPICXX" "$temporary/mpi.cpp" -o "$temporary/mpi" 2>"$temporary/errors" ||
    fail "$MPICXX did not compile a small MPI program ($(first_error))."
  "$PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    fail "a site's MPI needs Python.h, to build mpi4py (Debian and Ubuntu: the package python${version%.*}-dev)."
fi

free_gb() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }'; }
used_gb=0  # What is there already counts, or a mended set-up would ask for twice the room.
if [ -d "$VENV" ]; then used_gb=$(du -sk "$VENV" | awk '{ print int($1 / 1048576) }'); fi
[ $(($(free_gb "$ROOT") + used_gb)) -ge "$DISK_GB" ] ||
  fail "needs $DISK_GB GB of free disk for $VENV; there are $(free_gb "$ROOT")."
[ "$(free_gb "${TMPDIR:-/tmp}")" -ge "$TEMPORARY_GB" ] ||
  fail "needs $TEMPORARY_GB GB in ${TMPDIR:-/tmp}; there are $(free_gb "${TMPDIR:-/tmp}"). Name another folder: make venv TMPDIR=/path"

# --- The environment ------------------------------------------------------------------
if [ -n "${PYTHONPATH:-}" ]; then
  say "note: PYTHONPATH is set ($PYTHONPATH); what lies there hides packages of .venv from Python."
fi
# pip would take what lies there for installed.
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONNOUSERSITE=1

say "Python $version, $($CXX --version | head -n 1), ${MPICXX:-"MPICH of requirements.txt"}"
made_for="$VENV $PYTHON $version $MPICXX $MPICC $MPIRUN"
made_with="$(choice FOLDER) $(choice PYTHON) $made_with_version $(choice MPICXX) $(choice MPICC) $(choice MPIRUN)"
# A .venv made by hand has no choices, and is mended where it is, but not for another MPI.
if [ ! -f "$CHOICES" ] && [ -z "$MPICXX" ]; then made_with=$made_for; fi
venv_version=$("$VENV/bin/python" -m pip --version >/dev/null 2>&1 &&
  "$VENV/bin/python" -c 'import platform; print(platform.python_version())') || true
if [ -e "$UNFINISHED" ] || [ "$made_with" != "$made_for" ] || [ "$venv_version" != "$version" ]; then
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV"
fi
touch "$UNFINISHED"
rm -f "$READY"
printf '%s\n' "FOLDER=$VENV" "ASKED_PYTHON=$asked_python" "PYTHON=$PYTHON" "VERSION=$version" "MPICXX=$MPICXX" \
  "MPICC=$MPICC" "MPIRUN=$MPIRUN" >"$CHOICES"
pip=("$VENV/bin/python" -m pip -qq)

locked() {  # Prints the lock's lines of the named packages, or without them: locked only|except NAMES
  awk -v how="$1" -v names=" ${*:2} " '
    /^[a-zA-Z0-9]/ { split($0, part, "=="); named = index(names, " " part[1] " ") > 0 }
    named == (how == "only")' requirements.txt
}
seconds() { echo "$((SECONDS - $1)) s"; }

# --- Packages -------------------------------------------------------------------------
step=$SECONDS
say "packages from the locks ..."
# The locks are whole, so pip need not look for dependencies (and stumbles on some: it meets
# etils[epath] before the pinned etils). What comes as source is built with the first three.
locked only setuptools wheel packaging >"$temporary/first.txt"
"${pip[@]}" install --no-deps --require-hashes -r "$temporary/first.txt"
if [ -z "$MPICXX" ]; then
  "${pip[@]}" install --no-deps --no-build-isolation --require-hashes \
    -r requirements.txt -r requirements-dev.txt
else
  locked except mpich mpi4py >"$temporary/requirements.txt"
  "${pip[@]}" install --no-deps --no-build-isolation --require-hashes \
    -r "$temporary/requirements.txt" -r requirements-dev.txt
  "${pip[@]}" install --no-deps --require-hashes --target "$temporary/tools" \
    -r install/requirements-mpi4py.txt
  locked only mpi4py >"$temporary/mpi4py.txt"
  # Not from pip's cache: a wheel there may have been built against another MPI.
  PYTHONPATH=$temporary/tools MPICC=$MPICC "${pip[@]}" install --no-build-isolation \
    --no-cache-dir --no-deps --no-binary mpi4py --require-hashes \
    -r "$temporary/mpi4py.txt" >"$temporary/log" 2>&1 || {
    tail -n 20 "$temporary/log" >&2
    fail "mpi4py did not build with $MPICC (its last lines are above)."
  }
  # A script, not a link: some launchers find their own files by the name they are called by.
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$MPIRUN" >"$VENV/bin/mpirun"
  chmod +x "$VENV/bin/mpirun"
fi
say "packages: $(seconds "$step")"

# --- Horovod and this project ---------------------------------------------------------
step=$SECONDS
wheel=$(bash install/build_horovod.sh "$VENV" ${MPICXX:+"$MPICXX"})
"${pip[@]}" install --no-deps --force-reinstall "$wheel"
"${pip[@]}" install --no-deps --no-build-isolation -e "$ROOT"
build_ops
say "Horovod and this project: $(seconds "$step")"

# --- Does it work? --------------------------------------------------------------------
step=$SECONDS
check='
from mpi4py import MPI  # Before Horovod, as in resnet/distributed/communicator.py.
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum, name="check")
assert hvd.size() == MPI.COMM_WORLD.size == 2, f"two ranks were started; each sees {hvd.size()}"
assert float(total[0]) == 3.0, f"the sum of 1 and 2 over the ranks came out as {float(total[0])}"
'
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' timeout -k 10 180 \
  "$VENV/bin/mpirun" -np 2 "$VENV/bin/python" -c "$check" </dev/null >"$temporary/check.log" 2>&1 || {
  tail -n 20 "$temporary/check.log" >&2
  fail "all is installed, but two ranks could not add two numbers (the last lines are above)."
}
say "self-check, two ranks: $(seconds "$step")"

key "$version" >"$READY.new"
mv "$READY.new" "$READY"
rm -f "$UNFINISHED"
say "ready in $(seconds "$started")"
