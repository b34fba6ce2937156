#!/usr/bin/env bash
# Compiles the C++ ops of resnet/native against the TensorFlow of an environment.
#
#   [CXX='ccache g++'] build_native.sh VENV
#
# Writes resnet/native/libresnet_ops.so, unless it is there and nothing has changed.
# Without it everything works, but slower. The ops for AVX-512 need GCC 10 or newer on
# x86_64; other compilers build those that read and resize images, update weights and
# compress gradients.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1
[ -x "$venv/bin/python" ] || {
  echo "build_native.sh: $venv must be an environment with TensorFlow, and is none." >&2
  exit 1
}
target=$PWD/resnet/native/libresnet_ops
for_any_cpu='activation|read_example|resize_bicubic|momentum|server_update|compress_sparse|compress_quantized|decode_messages|cut_message'  # Sources without AVX-512.

# CXX is a program, or a program and its options.
CXX=${CXX:-g++}
if command -v "$CXX" >/dev/null; then compiler=("$CXX"); else read -r -a compiler <<<"$CXX"; fi

# Two checksums: of everything that the library is made from, and of the compiler.
sources_key=$({
  cat install/build_native.sh resnet/native/*.cc resnet/native/*.h
  cd "$venv" && ls -d lib/python*/site-packages/tensorflow-*.dist-info
} | sha256sum | cut -c1-64)
version=$("${compiler[@]}" --version 2>/dev/null) || version=
key=$sources_key$'\n'$(sha256sum <<<"${compiler[*]} $version" | cut -c1-64)

is_current() {  # Whether there is a library of these sources, from any compiler.
  [ -f "$target.so" ] && [ "$(sed -n 1p "$target.key" 2>/dev/null)" = "$sources_key" ]
}
is_done() { is_current && { [ -z "$version" ] || [ "$(cat "$target.key")" = "$key" ]; }; }

# shellcheck source-path=SCRIPTDIR source=lock.sh
. install/lock.sh
has_lock=1
take_lock "$target.lock" || has_lock=  # A second call at the same time waits here.
if is_done; then exit 0; fi
[ -n "$has_lock" ] || note_no_lock "$target.lock"

ended() {
  rm -rf "$temporary"
  is_current || rm -f "$target.so" "$target.key"  # A library of other sources may not fit.
}
temporary=$(mktemp -d)
trap ended EXIT
[ -n "$version" ] || {
  echo "build_native.sh: '$CXX' can't be run. Name a C++ compiler: make venv CXX=/path/to/g++" >&2
  exit 1
}
CUDA_VISIBLE_DEVICES='' "$venv/bin/python" -c '
import tensorflow as tf
flags = tf.sysconfig.get_compile_flags()
print("-isystem", tf.sysconfig.get_include(), sep="\n")
print(*(flag for flag in flags if not flag.startswith("-I")), sep="\n")
print("", *tf.sysconfig.get_link_flags(), sep="\n")
' >"$temporary/flags" 2>"$temporary/log" || {
  tail -n 5 "$temporary/log" >&2
  echo "build_native.sh: TensorFlow can't be imported in $venv (its last lines are above)." >&2
  exit 1
}
# One flag per line, since a folder's name may contain spaces; an empty line separates the
# compiler's flags from the linker's.
mapfile -t flags < <(sed '/^$/,$d' "$temporary/flags")
mapfile -t libraries < <(sed '1,/^$/d' "$temporary/flags")

# No -march: the library runs on any processor of this architecture, and the sources select
# newer instructions themselves. TensorFlow's headers are included by -isystem, without their
# warnings. Those about uninitialized values are off: GCC 12 has some in its own headers.
options=(-c -fPIC -O3 -Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized
  "-I$PWD" "${flags[@]}")
compile() {  # compile SOURCE ...: one compiler per core, each with up to 1 GB of memory.
  # shellcheck disable=SC2016 # The inner bash expands $1 and $2.
  printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I{} bash -c '
    object=$1/$(basename "$2" .cc).o
    shift 2
    "$@" -o "$object"
  ' compile "$temporary" {} "${compiler[@]}" "${options[@]}" {}
}
sources=(resnet/native/*.cc)
mapfile -t portable < <(printf '%s\n' "${sources[@]}" | grep -E "/($for_any_cpu)\.cc$")
mapfile -t avx512 < <(printf '%s\n' "${sources[@]}" | grep -v -E "/($for_any_cpu)\.cc$")

compile "${portable[@]}"
# clang calls itself GCC 4.2 and ignores `#pragma GCC target`.
without_avx512=$("${compiler[@]}" -E -P -x c++ - 2>/dev/null <<'CPP' | tail -n 1
#if defined(__clang__)
it is clang
#elif !defined(__x86_64__)
it is not for x86_64
#elif !defined(__GNUC__) || __GNUC__ < 10
it is older
#endif
CPP
) || true
if [ -n "$without_avx512" ]; then
  echo "build_native.sh: without the ops for AVX-512, which need GCC 10 or newer on x86_64:" \
    "'$CXX' is another compiler ($without_avx512). Name one: make venv CXX=/path/to/g++" >&2
elif ! compile "${avx512[@]}"; then
  echo "build_native.sh: the ops for AVX-512 did not compile (see above), the others did." >&2
  find "$temporary" -name '*.o' | grep -v -E "/($for_any_cpu)\.o$" | xargs -d '\n' -r rm
  key=$sources_key$'\nto be tried again'
fi
"${compiler[@]}" -shared -s -o "$temporary/library.so" "$temporary"/*.o "${libraries[@]}"
rm -f "$target.key"
cp "$temporary/library.so" "$target.so.new"  # Renamed below: never incomplete under its name.
mv "$target.so.new" "$target.so"
echo "$key" >"$target.key"
