#!/usr/bin/env bash
# Compiles the C++ ops of resnet/native against the TensorFlow of an environment.
#
#   [CXX='ccache g++'] build_native.sh VENV
#
# Writes resnet/native/libresnet_ops.so, unless it is there and nothing has changed; without
# CXX, a library of these sources is kept, whichever compiler made it. Without the library
# everything works, but slower. Convolutions and normalization are compiled for AVX-512 and
# for AVX2 on x86_64, where AVX-512 needs GCC 10 or clang 10 and AMX GCC 11 or clang 12, and
# for NEON on aarch64.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1
[ -x "$venv/bin/python" ] || {
  echo "build_native.sh: $venv must be an environment with TensorFlow, and is none." >&2
  exit 1
}
target=$PWD/resnet/native/libresnet_ops
# Each source of these is compiled for several instruction sets.
kernels='conv_gemm|winograd|winograd_gradient|batch_norm_kernels|batch_norm_grad_kernels'
products_fma='gemm_fma|gemm_fma_transposed'     # In float32, for AVX-512, AVX2 and NEON.
products_bf16='gemm_bf16|gemm_bf16_transposed'  # For AVX-512 with AVX512_BF16.
convolutions_amx='conv_amx'                     # In place of all others.
# Also for CPUs without either.
kernels_any_cpu='kernel_set|momentum_kernels|activation_kernels|pooling_kernels'

# CXX is a program, or a program and its options.
named_compiler=${CXX:-}
if [ -z "$named_compiler" ]; then
  CXX=g++
  command -v g++ >/dev/null || CXX=c++
fi
if command -v "$CXX" >/dev/null; then compiler=("$CXX"); else read -r -a compiler <<<"$CXX"; fi

# What the library is made from: the checksum of the sources, in the order of ASCII, and
# TensorFlow's version. resnet/native/__init__.py compares both. Then the compiler's checksum.
sources_key=$(
  LC_ALL=C
  cat install/build_native.sh resnet/native/*.cc resnet/native/*.h | sha256sum | cut -c1-64
)$'\n'$(find "$venv"/lib/python*/site-packages -maxdepth 1 \
  -regex '.*/tensorflow\(_cpu\)?-[^-]*\.dist-info' -printf '%f\n' | cut -d- -f2 | sed 's/\.dist$//; q')
version=$("${compiler[@]}" --version 2>/dev/null) || version=
compiler_key=$(sha256sum <<<"${compiler[*]} $version" | cut -c1-64)
try_again='to be tried again'  # Instead of the compiler's checksum.

is_current() {  # Whether there is a library of these sources, from any compiler.
  [ -f "$target.so" ] && [ "$(sed -n 1,2p "$target.key" 2>/dev/null)" = "$sources_key" ]
}
is_done() {  # Whether nothing has to be built, with this compiler or the one of the library.
  is_current || return 1
  [ -n "$version" ] || return 0  # It can't be built again.
  case $(sed -n 3p "$target.key") in
  "$compiler_key") return 0 ;;
  "$try_again") return 1 ;;
  *) [ -z "$named_compiler" ] ;;
  esac
}

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

# No -march: the library runs on any processor of this architecture, and the kernels select
# newer instructions themselves. TensorFlow's headers are included by -isystem, without their
# warnings. Those about uninitialized values are off: GCC 12 has some in its own headers.
options=(-c -fPIC -O3 -fvisibility=hidden -Wall -Wextra -Wno-uninitialized "-I$PWD"
  "${flags[@]}")
is_clang=$("${compiler[@]}" -E -P -x c++ - 2>/dev/null <<<'__clang__' | tail -n 1) || true
# Intel's icpx, a clang, would otherwise compile with -ffast-math.
if [ "$is_clang" = 1 ]; then
  options+=(-ffp-model=precise)
else
  options+=(-fno-fast-math -Wno-maybe-uninitialized)
fi
compile() {  # compile SET/SOURCE ...: one compiler per core, each with up to 1 GB of memory.
  # shellcheck disable=SC2016 # The inner bash expands $1 and $2.
  printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I{} bash -c '
    folder=$1 set=${2%%/*} source=${2#*/} num_files=$3
    shift 3
    "$@" "-DRESNET_$set" "$source" -o "$folder/$(basename "$source" .cc).$set.o" &&
      echo "compiling ops $(find "$folder" -name "*.o" | wc -l) of $num_files"
  ' compile "$temporary" {} $# "${compiler[@]}" "${options[@]}"
}
sources=(resnet/native/*.cc)
select_sources() { printf '%s\n' "${sources[@]}" | grep -E "/($1)\.cc$"; }
mapfile -t ops < <(printf '%s\n' "${sources[@]}" |
  grep -v -E "/($kernels|$products_fma|$products_bf16|$convolutions_amx|$kernels_any_cpu)\.cc$")
mapfile -t any_cpu < <(select_sources "$kernels_any_cpu")
mapfile -t vectors < <(select_sources "$kernels|$products_fma|$kernels_any_cpu")
mapfile -t bf16 < <(select_sources "$kernels|$products_bf16|kernel_set")
mapfile -t amx < <(select_sources "$convolutions_amx|kernel_set")

can_build=$("${compiler[@]}" -E -P -x c++ - 2>/dev/null <<'CPP' | tail -n 1
#if defined(__aarch64__)
neon
#elif !defined(__x86_64__)
none
#elif !defined(__clang__) && __GNUC__ < 10
avx2
#elif defined(__clang__) ? __clang_major__ < 12 : __GNUC__ < 11
avx512
#else
all
#endif
CPP
) || true
files=("${ops[@]/#/ANY_CPU/}" "${any_cpu[@]/#/ANY_CPU/}")
if [ "$can_build" = none ]; then
  echo "build_native.sh: without the ops for convolution and normalization, which need" \
    "AVX2 or NEON: '$CXX' is not for x86_64 or aarch64" >&2
elif [ "$can_build" = neon ]; then
  files=("${vectors[@]/#/NEON/}" "${files[@]}")
else
  files=("${vectors[@]/#/AVX2/}" "${files[@]}")
fi
if [ "$can_build" = avx2 ]; then
  echo "build_native.sh: without the kernels for AVX-512, which need GCC 10 or newer, or" \
    "clang: '$CXX' is older. Name one: make venv CXX=/path/to/g++" >&2
elif [ "$can_build" = avx512 ] || [ "$can_build" = all ]; then
  files=("${vectors[@]/#/AVX512/}" "${bf16[@]/#/AVX512_BF16/}" "${files[@]}")
  if [ "$can_build" = all ]; then
    files=("${amx[@]/#/AVX512_AMX/}" "${files[@]}")
  else
    echo "build_native.sh: without the kernels for AMX, which need GCC 11 or newer, or" \
      "clang 12: '$CXX' is older. Name one: make venv CXX=/path/to/g++" >&2
  fi
fi
compile "${files[@]}" || true  # What is missing is found below.
for file in "${files[@]}"; do
  set=${file%%/*}
  [ ! -e "$temporary/$(basename "$file" .cc).$set.o" ] || continue
  [ "$set" != ANY_CPU ] || exit 1
  [ ! -e "$temporary/without.$set" ] || continue
  touch "$temporary/without.$set"
  echo "build_native.sh: the kernels for $set did not compile (see above)," \
    "the rest did." >&2
  compiler_key=$try_again
done
for missing in "$temporary"/without.*; do rm -f "$temporary"/*".${missing##*.}.o"; done
# The library's own functions, and copies of those of TensorFlow's headers, stay inside.
echo '{ global: resnet_*; local: *; };' >"$temporary/exports"
"${compiler[@]}" -shared -s "-Wl,--version-script=$temporary/exports" \
  -o "$temporary/library.so" "$temporary"/*.o "${libraries[@]}"
rm -f "$target.key"
cp "$temporary/library.so" "$target.so.new"  # Renamed below: never incomplete under its name.
mv "$target.so.new" "$target.so"
printf '%s\n' "$sources_key" "$compiler_key" >"$target.key"
