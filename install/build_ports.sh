#!/usr/bin/env bash
# Compiles resnet/native/private_ports.c, which asynchronous training needs, in a second.
#
#   [CXX='ccache g++'] build_ports.sh
#
# Writes resnet/native/libresnet_ports.so.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=resnet/native/libresnet_ports.so

# CXX is a program, or a program and its options, as in build_native.sh.
CXX=${CXX:-$(command -v g++ || echo c++)}
if command -v "$CXX" >/dev/null; then compiler=("$CXX"); else read -r -a compiler <<<"$CXX"; fi
trap 'rm -f "$target.$$"' EXIT
"${compiler[@]}" -x c -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden \
  -o "$target.$$" resnet/native/private_ports.c
mv "$target.$$" "$target"  # Never incomplete under its name.
