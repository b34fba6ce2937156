#!/usr/bin/env bash
# Makes .venv in this clone: the pinned packages, Horovod, and this project. Called by
# `make venv`; needs no root. If .venv is ready, it ends at once. If .venv has to be made
# again, the new one is built in .venv.new, and replaces .venv only if it works.
#
# Read from the environment, and stored in .venv/choices for later calls:
#   PYTHON   the Python to use, 3.10 to 3.13 (else python3, else python3.12, 3.11, ...)
#   MPICXX   a site's MPI C++ compiler wrapper (else PyPI's MPICH is installed)
#   MPICC    its C compiler wrapper            (else the one beside MPICXX)
#   MPIRUN   its launcher                      (else the mpirun beside MPICXX)
# Read from the environment, not stored:
#   CXX         the C++ compiler, perhaps with options (else g++, else c++)
#   SELF_CHECK  no: doesn't start two ranks at the end, for a node that forbids MPI
#   WHEELS      a folder of `make wheels`, from which all packages come, without a network
#   GOALS       the targets of make; after `venv` alone, it says what to type next
set -euo pipefail

ROOT=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$(readlink -m "$ROOT/.venv")  # It may be a link to a folder with more room.
NEW=$VENV.new  # A new environment while it is built; it then takes the place of .venv.
OLD=$VENV.old  # The previous environment while it is being replaced.
REPLACING=$VENV.replacing  # A file beside OLD; without it OLD is of something else.
CHOICES=$VENV/choices  # The Python and the MPI that .venv was made with.
READY=$VENV/ready      # Contains the key below; written last.
DISK_GB=5              # .venv takes about 2 GB, pip's downloads and unpacking the rest.
TEMPORARY_GB=2         # For the largest package while pip unpacks it, or Horovod's build.
COST="about 5 minutes on 2 cores, 0.5 GB of downloads and 2.1 GB of disk"
SELF_CHECK=${SELF_CHECK:-yes}

fail() {
  echo "make venv: $*" >&2
  exit 1
}
started=$SECONDS
ticks=0 most_mb=0
say() { echo "[venv] $*"; }
elapsed() { printf '%d:%02d' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

# step WHAT COMMAND ...: runs a command, whose output, a log for report_progress, is in $log.
step() {
  local what=$1
  shift
  : >"$log"
  { while sleep 1 >&2 && kill -0 $$; do ((++ticks % 15)) || report_progress; done; } 2>/dev/null &
  local ticker=$!
  "$@" >"$log"  # Called without ||, a step that fails ends the set-up here.
  local status=$?
  # SIGKILL: at SIGTERM, one that has just begun would run the EXIT trap of this shell.
  { kill -KILL "$ticker" && wait "$ticker"; } 2>/dev/null || true
  return "$status"
}
report_progress() {  # Prints how far a step is, if its log says so.
  local doing size ops
  doing=$(awk '
    /^(Collecting|Requirement already)/ {
      name = $1 == "Collecting" ? $2 : $4
      sub(/[=<>;[].*/, "", name)
      if (!seen[name]++) ++fetched
    }
    /^compiling / { doing = $0 }
    END { print doing ? doing : fetched }' "$log")
  case $doing in
  '') doing=$what ;;
  [0-9]*)
    size=$(du -sm "$temporary" | cut -f1)  # It falls when packages have been unpacked.
    most_mb=$((size > most_mb ? size : most_mb))
    doing="packages: $doing of $num_packages fetched, $most_mb MB;"
    doing+=" $(ls -d "$TARGET"/lib/python*/site-packages/*.dist-info | wc -l) installed"
    ;;
  esac
  ops=$(sed -n "/^compiling/h; \$ { x; p }" "$temporary/ops" 2>/dev/null) || true
  say "$(elapsed) $doing${ops:+; $ops}"
}

cd "$ROOT"
# shellcheck source-path=SCRIPTDIR source=lock.sh
. install/lock.sh
# shellcheck source-path=SCRIPTDIR source=pip_settings.sh
. install/pip_settings.sh
has_lock=1
take_lock "$ROOT/.venv.lock" || has_lock=  # A second call at the same time waits here.
if [ -e "$REPLACING" ]; then  # An earlier call was interrupted while it replaced .venv.
  if [ -e "$VENV" ]; then rm -rf "$OLD"; elif [ -e "$OLD" ]; then mv "$OLD" "$VENV"; fi
  rm -f "$REPLACING"
fi
[[ $SELF_CHECK == yes || $SELF_CHECK == no ]] || fail "SELF_CHECK must be yes or no; got $SELF_CHECK."
if [ -n "${WHEELS:-}" ]; then  # Then pip looks for packages nowhere else.
  [ -d "$WHEELS" ] || fail "there is no folder WHEELS=$WHEELS. Make one: make wheels"
  WHEELS=$(CDPATH='' cd "$WHEELS" && pwd)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=file://${WHEELS// /%20}
  export RESNET_CPU_CACHE=${RESNET_CPU_CACHE:-$WHEELS}  # Where `make wheels` puts a built Horovod.
fi

# --- The choices: from the environment, else those that .venv was made with -----------
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
  # The wrappers of one MPI are in one folder, and their names differ at the end.
  folder=$(CDPATH='' cd "$(dirname "$MPICXX")" && pwd)
  MPICXX=$folder/$(basename "$MPICXX")
  if [ -z "${MPICC:-}" ]; then
    case $(basename "$MPICXX") in
    mpiicpx) MPICC=$folder/mpiicx ;;
    mpiicpc) MPICC=$folder/mpiicc ;;
    mpigxx) MPICC=$folder/mpigcc ;;
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

python_version() {  # Prints the version of a Python, or why it can't be used.
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

key() {  # Prints a checksum of everything that determines the content of .venv.
  {
    echo "$1" "$MPICXX" "$MPICC" "$MPIRUN"
    cat requirements.txt requirements-build.txt setup.py \
      pyproject.toml install/*.sh install/*.txt
  } | sha256sum | cut -c1-64
}

temporary=$(mktemp -d)
log=$temporary/log
ended() {
  kill $(jobs -p) 2>/dev/null || true  # A ticker, and what is installed beside a step.
  rm -rf "$temporary"
}
trap ended EXIT

named_compiler=${CXX:-}  # Below, CXX gets a default.
build_ops() {  # build_ops VENV: quick if they are up to date.
  CXX=$named_compiler bash install/build_ports.sh ||
    say "asynchronous training won't start: resnet/native/private_ports.c did not build" >&2
  if [ -f "${WHEELS:-}/libresnet_ops.so" ] && [ ! -e resnet/native/libresnet_ops.so ]; then
    cp "$WHEELS"/libresnet_ops.* resnet/native  # Built again if it is of other sources.
  fi
  CXX=$named_compiler bash install/build_native.sh "$1"
}

# --- Nothing to do? -------------------------------------------------------------------
made_with_version=$(choice VERSION)
# FOLDER may be another path of the same folder, with links, as sites have for /home.
if [ -f "$READY" ] && [ -x "$VENV/bin/python" ] && [ "$(choice FOLDER)" -ef "$VENV" ] &&
  [ "$asked_python" = "$(choice ASKED_PYTHON)" ] &&
  [ "$(cat "$READY")" = "$(key "$made_with_version")" ]; then
  step "preparing the build of the ops" build_ops "$VENV" || bash install/check.sh "$VENV" ops || true
  [ "${GOALS:-venv}" != venv ] || say "$VENV is ready"
  exit 0
fi
[ -n "$has_lock" ] || note_no_lock "$ROOT/.venv.lock"

# --- Checks, before anything is downloaded --------------------------------------------
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
    # The real path, so that a later call with another PATH takes the same Python.
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
first_error() { grep -m 1 . "$temporary/errors" || echo "it says nothing"; }
cat >"$temporary/check.cpp" <<'CPP'
#include <optional>
#include <string_view>
int main() {
  std::optional<std::string_view> word = "C++17";
  if constexpr (__cplusplus >= 201703L) return word->size() == 5 ? 0 : 1;
}
CPP
# CXX is a program, or a program and its options.
if command -v "$CXX" >/dev/null; then compiler=("$CXX"); else read -r -a compiler <<<"$CXX"; fi
"${compiler[@]}" -std=c++17 "$temporary/check.cpp" -o "$temporary/check" 2>"$temporary/errors" ||
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

# --- The environment ------------------------------------------------------------------
if [ -n "${PYTHONPATH:-}" ]; then
  say "note: PYTHONPATH is set ($PYTHONPATH); what lies there hides packages of .venv from Python."
fi
# pip would regard packages in these folders as installed.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1

say "Python $version, $("${compiler[@]}" --version | head -n 1), ${MPICXX:-"MPICH of requirements.txt"}"

reason_for_another() {  # Prints why .venv can't be updated in place; else nothing.
  local mpi="$MPICXX $MPICC $MPIRUN" made_with_mpi
  made_with_mpi="$(choice MPICXX) $(choice MPICC) $(choice MPIRUN)"
  if [ ! -e "$VENV" ]; then
    echo "there is none"
  elif [ -e "$VENV/unfinished" ]; then
    echo "a change of it was interrupted"
  elif ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "its Python or its pip can't be run"
  elif [ ! -f "$CHOICES" ]; then  # Made by hand.
    if [ -n "$MPICXX" ]; then echo "it was not made with MPICXX=$MPICXX"; fi
  elif ! [ "$(choice FOLDER)" -ef "$VENV" ]; then
    echo "it was made as $(choice FOLDER), and has been moved or copied"
  elif ! [ "$(choice PYTHON)" -ef "$PYTHON" ] || [ "${made_with_version%.*}" != "${version%.*}" ]; then
    echo "it was made with Python $made_with_version, $(choice PYTHON)"
  elif [ "$mpi" != "$made_with_mpi" ]; then
    echo "it was made with another MPI (${made_with_mpi%% *})"
  fi
}
check_folders() {  # Fails if something else would be removed with .venv.
  local folder
  for folder in "$VENV" "$NEW"; do
    [ ! -e "$folder" ] || [ -f "$folder/pyvenv.cfg" ] || [ -z "$(ls -A "$folder")" ] ||
      fail "$folder is no virtual environment, so it isn't replaced. Move it away, or let .venv be a link to a new folder."
  done
  [ ! -e "$VENV" ] || [ ! -e "$OLD" ] ||
    fail "$OLD is in the way: $VENV gets that name while it is replaced. Move $OLD away."
}
processes_in() { grep -lsF "$1/" /proc/[0-9]*/maps | cut -d/ -f3 | xargs || true; }

reason=$(reason_for_another)
TARGET=$VENV  # The environment that is changed below.
if [ -n "$reason" ]; then
  TARGET=$NEW
  say "making $VENV, since $reason"
  check_folders
  users=$(processes_in "$VENV")
  [ -z "$users" ] ||
    fail "$VENV is in use by running programs (processes $users). Let them end, or end them."
fi

free_gb() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }'; }
mkdir -p "$(dirname "$VENV")"
used_gb=0  # Counted as free: an update in place doesn't need this disk space again.
if [ -d "$TARGET" ]; then used_gb=$(du -sk "$TARGET" | awk '{ print int($1 / 1048576) }'); fi
free=$(free_gb "$(dirname "$VENV")")
[ $((free + used_gb)) -ge "$DISK_GB" ] ||
  fail "needs $DISK_GB GB of free disk for $TARGET; there are $free."
[ "$(free_gb "${TMPDIR:-/tmp}")" -ge "$TEMPORARY_GB" ] ||
  fail "needs $TEMPORARY_GB GB in ${TMPDIR:-/tmp}; there are $(free_gb "${TMPDIR:-/tmp}"). Name another folder: make venv TMPDIR=/path"

changed=
say_state() {
  if [ -e "$VENV/unfinished" ]; then
    say "the change of $VENV is not finished; the next call makes another in its place"
  elif [ -z "$changed" ] && [ -e "$VENV" ]; then
    say "$VENV is as it was before"
  fi
}
exec 3>&1  # In an interrupted step, standard output is the log.
trap 'ended; say_state >&3' EXIT
say "this takes $COST, less of each where caches are full"

# --- Packages, Horovod and this project -----------------------------------------------
locked() {  # locked only|except NAMES: prints the lock's lines of these packages, or of all others.
  awk -v how="$1" -v names=" ${*:2} " '
    /^[a-zA-Z0-9]/ { split($0, part, "=="); named = index(names, " " part[1] " ") > 0 }
    named == (how == "only")' requirements.txt
}
# What is fetched and installed; the pinned names, of which some are for other systems.
num_packages=$(sed -nE "/win32|!= 'x86_64'/d; s/^([a-zA-Z0-9][^=]*)==.*/\1/p" \
  requirements.txt | sort -u | wc -l)
pip=(env TMPDIR="$temporary" PIP_ROOT_USER_ACTION=ignore "$TARGET/bin/python" -m pip)
# Some of their dependencies are left out on purpose, of which pip would warn in red.
install() { "${pip[@]}" install --progress-bar off --no-deps --no-warn-conflicts "$@"; }

install_packages() {
  local apart=(tensorflow tensorflow-cpu)  # One of them, as the machine is.
  take_pip_sources "$TARGET/bin/python"
  # The locks are complete, so pip need not resolve dependencies (and would fail on some: it
  # meets etils[epath] before the pinned etils). Packages that come as source are built with
  # the first three.
  locked only setuptools wheel packaging >"$temporary/first.txt"
  install --require-hashes -r "$temporary/first.txt"
  locked only "${apart[@]}" >"$temporary/tensorflow.txt"
  [ -z "$MPICXX" ] || apart+=(mpich mpi4py)
  locked except "${apart[@]}" >"$temporary/others.txt"
  # Half of the work is TensorFlow, which takes a core of its own.
  install --no-compile --require-hashes -r "$temporary/tensorflow.txt" &
  install --no-compile --no-build-isolation --require-hashes -r "$temporary/others.txt"
  wait $!
  # On all cores, where pip has one. A file that can't be compiled is no fault for pip either.
  echo "compiling the packages' bytecode"
  "$TARGET/bin/python" -m compileall -qq -j 0 "$TARGET"/lib/python*/site-packages || true
  if [ -n "$MPICXX" ]; then
    install --require-hashes --target "$temporary/tools" -r install/requirements-mpi4py.txt
    locked only mpi4py >"$temporary/mpi4py.txt"
    # Not from pip's cache: a wheel there may have been built against another MPI.
    PYTHONPATH=$temporary/tools MPICC=$MPICC install --no-build-isolation \
      --no-cache-dir --no-binary mpi4py --require-hashes \
      -r "$temporary/mpi4py.txt" >"$temporary/mpi4py.log" 2>&1 || {
      tail -n 20 "$temporary/mpi4py.log" >&2
      fail "mpi4py did not build with $MPICC (its last lines are above)."
    }
    # A script, not a link: some launchers find their own files by the path of their command.
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$MPIRUN" >"$TARGET/bin/mpirun"
    chmod +x "$TARGET/bin/mpirun"
  fi
}
install_project() {
  install --force-reinstall "$1"
  install --no-build-isolation -e "$ROOT"
}

# Identifies a complete .venv.new, which an earlier call left because its check failed.
whole="$VENV $PYTHON $(key "$version")"
if [ "$TARGET" = "$VENV" ]; then
  changed=1
  touch "$VENV/unfinished"
  rm -f "$READY"
elif [ "$(cat "$NEW/whole" 2>/dev/null)" != "$whole" ]; then
  rm -rf "$NEW"
  "$PYTHON" -m venv --prompt .venv "$NEW"
fi
has_packages=
if [ "$(cat "$TARGET/whole" 2>/dev/null)" = "$whole" ] && [ "$TARGET" = "$NEW" ]; then has_packages=1; fi
if [ -z "$has_packages" ]; then
  step "looking for packages" install_packages
  say "$(elapsed) packages are installed"
fi
# Beside Horovod, whose build leaves cores idle at times, unless memory is for one compiler a core.
build_ops "$TARGET" >"$temporary/ops" &
ops=$!
ops_are_built() {
  [ -z "$ops" ] || wait "$ops" || say "the C++ ops of resnet/native did not build (see above)" >&3
  ops=
}
memory_gb=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
[ "$memory_gb" -ge $((2 * $(nproc))) ] || step "preparing the build of the ops" ops_are_built
if [ -z "$has_packages" ]; then
  step "preparing the build of Horovod" bash install/build_horovod.sh "$TARGET" ${MPICXX:+"$MPICXX"}
  step "installing Horovod and this project" install_project "$(tail -n 1 "$log")"
  say "$(elapsed) Horovod and this project are installed"
  printf '%s\n' "FOLDER=$VENV" "ASKED_PYTHON=$asked_python" "PYTHON=$PYTHON" \
    "VERSION=$version" "MPICXX=$MPICXX" "MPICC=$MPICC" "MPIRUN=$MPIRUN" >"$TARGET/choices"
  echo "$whole" >"$TARGET/whole"
  rm -f "$TARGET/unfinished"
fi

# --- Does it work? --------------------------------------------------------------------
if [ "$SELF_CHECK" = yes ]; then
  say "$(elapsed) checking that two ranks can add two numbers"
  bash install/check.sh "$TARGET" ranks || fail "all is installed, but does not work (see above)."
else
  say "no self-check: run make check where two ranks can be started"
fi
step "preparing the build of the ops" ops_are_built
if [ "$TARGET" = "$NEW" ]; then
  "$PYTHON" - "$NEW" "$VENV" <<'PY'
"""Replaces the path of an environment in its scripts by the path that it is moved to."""
import os, pathlib, sys

here, there = map(os.fsencode, sys.argv[1:])
folder = pathlib.Path(sys.argv[1])
for path in [folder / "pyvenv.cfg", *(folder / "bin").iterdir()]:
    if path.is_file() and not path.is_symlink():
        text = path.read_bytes()
        if here in text and b"\0" not in text:
            path.write_bytes(text.replace(here, there))
PY
  check_folders  # Again, since minutes have passed.
  changed=1
  if [ -e "$VENV" ]; then
    touch "$REPLACING"
    mv "$VENV" "$OLD"
  fi
  mv "$NEW" "$VENV"
  if [ -e "$REPLACING" ]; then
    say "$(elapsed) removing the old environment"
    rm -rf "$OLD"
    rm -f "$REPLACING"
  fi
fi
key "$version" >"$READY.new"
mv "$READY.new" "$READY"

# The first page of eval/report.py need not put the charts' library together then.
"$VENV/bin/python" -c "from resnet.report import charts; charts.script_text()" &
bash install/check.sh "$VENV" ops || true
wait $! || true
say "ready in $(elapsed) minutes"
if [ "${GOALS:-venv}" = venv ]; then
  say "next: make demo (it trains on handwritten digits, in a minute)"
  say "      or source .venv/bin/activate, then the commands for own images in README.md"
fi
