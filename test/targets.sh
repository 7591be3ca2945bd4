#!/bin/bash
# Compiles Pocket for systems that are not at hand, with the clang and the system headers of Zig (PyPI: ziglang).
# usage: test/targets.sh [TARGET...]      without targets: all of these
#
#   aarch64-linux-gnu aarch64-linux-musl x86_64-linux-musl arm-linux-gnueabihf aarch64-macos x86_64-macos
#   aarch64-linux-android   the compiler's Android target. Bionic is not among Zig's headers, musl's stand in for it: this
#                           shows that our code suits the target, not that bionic declares all that it calls.
#   x86_64-windows-gnu      the core alone: pocket/files/ maps files with mmap.
#
# Not here: riscv64 and wasm32, for which xsimd 8 has no vectors.
# For each: the core (test/targets/core.cpp) and what reads files and text (examples/answer.cpp), with the headers of
# xsimd, Highway, nlohmann-json, PCRE2 and utf8proc that are installed here. For x86_64-linux-musl examples/gemv.cpp is
# linked statically and run as well.
#
# $ZIG is the command of a Zig to use; else one is fetched into build-ci/zig with pip. Exit code: 0; 1 if anything
# failed; 77 if there is no Zig. The last line says how many checks passed and failed.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- aarch64-linux-gnu aarch64-linux-musl x86_64-linux-musl arm-linux-gnueabihf aarch64-macos \
  x86_64-macos aarch64-linux-android x86_64-windows-gnu
package='ziglang==0.17.1'

if [ -n "${ZIG:-}" ]; then
  read -r -a zig <<< "$ZIG"
else
  zig=(env "PYTHONPATH=$PWD/build-ci/zig" python3 -m ziglang)
  "${zig[@]}" version > /dev/null 2>&1 ||
    python3 -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: --target build-ci/zig \
      "$package" < /dev/null
fi
if ! version=$("${zig[@]}" version); then
  echo "targets.sh: skipped, there is no Zig (pip did not fetch $package and \$ZIG names none)"
  exit 77
fi
echo "Zig $version"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$PWD/build-ci/zig-cache}
# These headers alone: the rest of /usr/include belongs to another system.
mkdir "$scratch/include"
for name in xsimd/xsimd.hpp hwy/highway.h nlohmann/json.hpp pcre2.h utf8proc.h; do
  if [ ! -e "/usr/include/$name" ]; then
    echo "targets.sh: there is no /usr/include/$name: third_party/bootstrap.sh installs it"
    exit 1
  fi
  ln -s "/usr/include/${name%%/*}" "$scratch/include/${name%%/*}"
done

# Zig's clang traps undefined behaviour by default; -O0 compiles fastest, and warns no less.
flags=(-std=c++20 -fno-sanitize=all -fno-exceptions -fno-rtti -Wall -Wextra -Wconversion -Wshadow -Werror
  -Wno-unused-command-line-argument -I. -isystem "$scratch/include")

android_flags() { # Zig's lib directory
  printf '%s\n' -nostdlibinc -D_LIBCPP_PROVIDES_DEFAULT_RUNE_TABLE
  printf -- '-isystem\n%s\n' "$1"/{libcxx/include,libcxxabi/include} \
    "$1"/libc/include/{aarch64-linux-musl,generic-musl,aarch64-linux-any,any-linux-any}
}
mapfile -t android < <(android_flags "$("${zig[@]}" env | grep -oE '"?\.?lib_dir"? *[=:] *"[^"]*"' | cut -d'"' -f2)")

compile() { # TARGET SOURCE
  local target=$1 more=() log
  log=$scratch/$target-$(basename "$2")
  [ "$target" != aarch64-linux-android ] || more=("${android[@]}")
  if "${zig[@]}" c++ -target "$target" -O0 "${flags[@]}" "${more[@]}" -c "$2" -o "$log.o" > "$log.log" 2>&1; then
    echo "ok    $target $2"
  else
    echo "FAIL  $target $2"
    head -n 20 "$log.log"
  fi
  rm -f "$log.o"
}

# The C++ library is built for this: some minutes with an empty cache.
link_and_run() { # TARGET
  local program=$scratch/gemv-$1
  if "${zig[@]}" c++ -target "$1" -O1 -static "${flags[@]}" examples/gemv.cpp -o "$program" > "$program.log" 2>&1 &&
    "$program" > "$program.log" 2>&1 && grep -q '^[a-z0-9]*: y\[0\] = ' "$program.log"; then
    echo "ok    $1 examples/gemv.cpp, linked and run: $(cat "$program.log")"
  else
    echo "FAIL  $1 examples/gemv.cpp, linked and run"
    head -n 20 "$program.log"
  fi
}

checks() { # TARGET...
  local target
  for target in "$@"; do
    # First, since it takes longest.
    [ "$target-$(uname -m)" != x86_64-linux-musl-x86_64 ] || echo "link_and_run $target"
  done
  for target in "$@"; do
    echo "compile $target test/targets/core.cpp"
    [[ $target == *windows* ]] || echo "compile $target examples/answer.cpp"
  done
}

export -f compile link_and_run
export scratch
declare -p zig flags android > "$scratch/variables" # arrays do not travel in the environment
results=$(checks "$@" | xargs -P "$(nproc)" -I{} bash -c 'source "$scratch/variables"; {}')
echo "$results"
passed=$(grep -c '^ok  ' <<< "$results")
failed=$(($(checks "$@" | wc -l) - passed))
echo "targets.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
