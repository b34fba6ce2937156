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
target=$PWD/resnet/native/libresnet_ops
CXX=${CXX:-g++}

key=$({
  cat install/build_native.sh resnet/native/*.cc
  ls -d "$venv"/lib/python*/site-packages/tensorflow-*.dist-info
  "$CXX" --version
} | sha256sum | cut -c1-64)
if [ -f "$target.so" ] && [ "$(cat "$target.key" 2>/dev/null)" = "$key" ]; then exit 0; fi

tensorflow() {  # Prints what TensorFlow says of itself, without its start-up notes.
  CUDA_VISIBLE_DEVICES='' "$venv/bin/python" -c "import tensorflow as tf; print($1)" 2>/dev/null
}
include=$(tensorflow 'tf.sysconfig.get_include()')
read -r -a flags < <(tensorflow '*(f for f in tf.sysconfig.get_compile_flags() if f[:2] != "-I")')
read -r -a libraries < <(tensorflow '*tf.sysconfig.get_link_flags()')

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
compilers=()
for source in resnet/native/*.cc; do
  # For any processor of the kind: what gains from newer instructions is compiled for each
  # of them and chosen when the library is loaded. System headers: their warnings aren't ours.
  "$CXX" -c -fPIC -O3 -Wall -Wextra -isystem "$include" "${flags[@]}" "$source" \
    -o "$temporary/$(basename "$source" .cc).o" &
  compilers+=($!)
done
for compiler in "${compilers[@]}"; do wait "$compiler"; done
"$CXX" -shared -s -o "$temporary/library.so" "$temporary"/*.o "${libraries[@]}"
rm -f "$target.key"
mv "$temporary/library.so" "$target.so.new"  # Under its name it is always whole.
mv "$target.so.new" "$target.so"
echo "$key" >"$target.key"
