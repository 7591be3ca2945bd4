#!/bin/bash
# Every header by itself, as a stranger's program meets it.
# usage: test/headers.sh COMPILER [HEADER...]      without headers: all of pocket/ and kernels/
#
# Per header two units, both with warnings as errors and without exceptions and RTTI:
#   first    the header is the first line, and comes twice: it includes what it uses, and guards itself;
#   hostile  after its system headers, macros that real platforms define (windows.h, X11, complex.h, sysmacros.h,
#            old macOS, sys/param.h), then the header.
# Linked into one program and run: a function that is not inline would be defined twice.
# Then pocket/pocket.hpp with what embedders turn on besides: stricter warnings, C++23, target flags, optimisation; and
# with the parts of -ffast-math, which it refuses (those that the compiler shows: see pocket/config.hpp).
# The last line says how many checks passed and failed; exit code 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
compiler=${1:?usage: test/headers.sh COMPILER [HEADER...]}
shift
some=${1:-}
[ $# -gt 0 ] || mapfile -t -O 1 headers < <(find pocket kernels -name '*.hpp' | sort)
[ $# -eq 0 ] || headers=("$@")
if [ ${#headers[@]} -eq 0 ]; then
  echo "headers.sh: no headers found under pocket/ and kernels/" >&2
  exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags=(-std=c++20 -Wall -Wextra -Wconversion -Wshadow -Werror -fno-exceptions -fno-rtti -I. -pthread)
# Eigen, for pocket/validate alone.
read -r -a eigen <<< "$(pkg-config --cflags-only-I eigen3 | sed 's/-I/-isystem/g')"
flags+=("${eigen[@]}")

cat > "$scratch/hostile.h" <<'END'
#define min(a, b) POCKET_HOSTILE((a) < (b))
#define max(a, b) POCKET_HOSTILE((a) > (b))
#define small char
#define near
#define far
#define interface struct
#define IN
#define OUT
#define ERROR 0
#define I _Complex_I
#define major(device) POCKET_HOSTILE(device)
#define minor(device) POCKET_HOSTILE(device)
#define B0 0000000
#define BLOCK_SIZE 1024
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define check(condition) POCKET_HOSTILE(condition)
#define verify(condition) POCKET_HOSTILE(condition)
#define require(condition) POCKET_HOSTILE(condition)
#define roundup(x, y) POCKET_HOSTILE(x, y)
#define linux 1
#define unix 1
END

# What the header and the project's files below it include in angle brackets, so that the macros hit our code alone
# (libstdc++ would take min and max away again). Arm's own headers stop other compilers.
system_headers() {
  "$compiler" "${flags[@]}" -x c++ -MM "$1" 2>/dev/null | tr -d '\\' | tr ' ' '\n' | grep -E '\.(hpp|inl)$' |
    xargs grep -hoE '^ *# *include *<[^>]+>' | grep -oE '<[^>]+>' | grep -vE 'arm_|foreach_target' | sort -u |
    while read -r name; do printf '#if __has_include(%s)\n#include %s\n#endif\n' "$name" "$name"; done
}

check_header() {
  local header=$1 work
  work=$scratch/${header//\//_}
  mkdir -p "$work"
  printf '#include "%s"\n#include "%s"\nint other();\nint main() { return other(); }\n' "$header" "$header" \
    > "$work/first.cpp"
  {
    echo '#define PCRE2_CODE_UNIT_WIDTH 8'
    system_headers "$header"
    cat "$scratch/hostile.h"
    printf '#include "%s"\nint other();\nint other() { return 0; }\n' "$header"
  } > "$work/hostile.cpp"
  if "$compiler" "${flags[@]}" -c "$work/first.cpp" -o "$work/first.o" > "$work/log" 2>&1 &&
    "$compiler" "${flags[@]}" -c "$work/hostile.cpp" -o "$work/hostile.o" >> "$work/log" 2>&1 &&
    "$compiler" -pthread "$work/first.o" "$work/hostile.o" -o "$work/program" >> "$work/log" 2>&1 &&
    "$work/program" >> "$work/log" 2>&1; then
    echo "ok    $header"
  else
    echo "FAIL  $header ($compiler)"
    head -n 30 "$work/log"
  fi
  rm -rf "$work"
}

# check_variant FLAG...: the whole core, instantiated, with more flags.
check_variant() {
  local work
  work=$(mktemp -d -p "$scratch")
  printf '#include "pocket/pocket.hpp"\ntemplate class pocket::Transformer<pocket::RuntimeSpec>;\n' > "$work/unit.cpp"
  if "$compiler" "${flags[@]}" "$@" -c "$work/unit.cpp" -o "$work/unit.o" > "$work/log" 2>&1; then
    echo "ok    pocket/pocket.hpp with $*"
  else
    echo "FAIL  pocket/pocket.hpp with $* ($compiler)"
    head -n 30 "$work/log"
  fi
}

# check_refusal FLAG...: stops with our message, and with no flag at all it would not.
check_refusal() {
  local said
  if ! said=$("$compiler" "${flags[@]}" -Wno-error "$@" -fsyntax-only -x c++ pocket/config.hpp 2>&1) &&
    grep -q 'compile without -ffast-math' <<< "$said"; then
    echo "ok    refuses $*"
  else
    echo "FAIL  refuses $* ($compiler)"
    head -n 30 <<< "$said"
  fi
}

# Not -march=native: where that is AVX-512, g++ 12 warns of its own <immintrin.h>.
variants=(
  '-fsyntax-only -Wpedantic -Wsign-conversion -Wold-style-cast -Wcast-qual -Wundef -Wnon-virtual-dtor -Woverloaded-virtual'
  '-fsyntax-only -std=c++23' '-O2 -march=haswell')
refused=(-ffast-math -Ofast -ffinite-math-only)
case $compiler in
  *clang*) ;;
  *) refused+=(-funsafe-math-optimizations -freciprocal-math -fno-signed-zeros
    '-fassociative-math -fno-signed-zeros -fno-trapping-math') ;;
esac
all_checks() {
  printf 'check_header %s\n' "${headers[@]}"
  [ -n "$some" ] && return
  printf 'check_variant %s\n' "${variants[@]}"
  printf 'check_refusal %s\n' "${refused[@]}"
}

export -f check_header check_variant check_refusal system_headers
export compiler scratch
declare -p flags > "$scratch/flags" # arrays do not travel in the environment
results=$(all_checks | xargs -P "$(nproc)" -I{} bash -c 'source "$scratch/flags"; {}')
echo "$results"
passed=$(grep -c '^ok  ' <<< "$results")
failed=$(($(all_checks | wc -l) - passed))
echo "headers.sh: $compiler: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
