#!/usr/bin/env bash
# Compiles the C++ ops of resnet/native against the TensorFlow of an environment.
#
#   build_native.sh VENV
#
# Writes resnet/native/libresnet_ops.so, unless it is there and nothing has changed.
# Without it everything works, but slower.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
[ -x "$venv/bin/python" ] || {
  echo "build_native.sh: $venv must be an environment with TensorFlow, and is none." >&2
  exit 1
}
exec 9<resnet/native
flock 9  # A second call at the same time waits here, then finds the library.
target=$PWD/resnet/native/libresnet_ops
CXX=${CXX:-g++}

key=$({
  cat install/build_native.sh resnet/native/*.cc resnet/native/*.h
  ls -d "$venv"/lib/python*/site-packages/tensorflow-*.dist-info
  "$CXX" --version
} | sha256sum | cut -c1-64)
if [ -f "$target.so" ] && [ "$(cat "$target.key" 2>/dev/null)" = "$key" ]; then exit 0; fi

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
said=$(CUDA_VISIBLE_DEVICES='' "$venv/bin/python" -c '
import tensorflow as tf
print(tf.sysconfig.get_include())
print(*(flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")))
print(*tf.sysconfig.get_link_flags())
' 2>"$temporary/log") || {
  tail -n 5 "$temporary/log" >&2
  echo "build_native.sh: TensorFlow can't be imported in $venv (its last lines are above)." >&2
  exit 1
}
{ read -r include; read -r -a flags; read -r -a libraries; } <<<"$said"

# For any processor of the kind: what gains from newer instructions is compiled for them
# apart, and used where they are. System headers: their warnings aren't ours; and GCC 12
# takes operands of its own AVX-512 headers for uninitialized.
options=(-c -fPIC -O3 -Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized
  "-I$PWD" -isystem "$include" "${flags[@]}")
# One compiler a core: each takes up to a gigabyte of memory.
# shellcheck disable=SC2016 # The inner bash expands $1 and $2.
printf '%s\0' resnet/native/*.cc | xargs -0 -P "$(nproc)" -I{} bash -c '
  object=$1/$(basename "$2" .cc).o
  shift 2
  "$@" -o "$object"
' compile "$temporary" {} "$CXX" "${options[@]}" {}
"$CXX" -shared -s -o "$temporary/library.so" "$temporary"/*.o "${libraries[@]}"
rm -f "$target.key"
cp "$temporary/library.so" "$target.so.new"  # Under its name it is always whole.
mv "$target.so.new" "$target.so"
echo "$key" >"$target.key"
