#!/bin/sh
# A plain #include is safe: no instruction beyond the x86-64 baseline outside the functions that are chosen at run time,
# and none brought in by the linker from a unit that was compiled for a newer processor.
# usage: test/isa.sh SOURCE_DIR COMPILER [FLAG...]      exit code 77: nothing to check here
#
# test/isa/unit.cpp (products, attention, a session) is compiled without target flags and with -march=haswell, at -O0
# and -O2, and both units are linked in both orders. With qemu-x86_64-static the programs run on an emulated Nehalem
# (SSE4.2) and Haswell (AVX2) as well. The examples are compiled as a stranger would, and gemv runs in the same places.
set -u
export LC_ALL=C
source=$1 compiler=$2
shift 2
if [ "$(uname -m)" != x86_64 ] || ! command -v objdump >/dev/null; then
  echo "skipped: needs an x86-64 machine and objdump"
  exit 77
fi
if ! printf '#include <xsimd/xsimd.hpp>\n#include <hwy/highway.h>\n' | "$compiler" "$@" -x c++ -std=c++20 -E - >/dev/null 2>&1; then
  echo "skipped: $compiler finds no xsimd or Highway without further flags"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
. "$source/test/isa/checks.sh"

foreign() { objdump -d --no-show-raw-insn "$1" | awk -f "$source/test/isa/foreign.awk" | sort; }
# The functions of the namespaces pocket::v0::avx2 and so on, with their lambdas and clones.
tagged='^_ZZ*NK*6pocket2v0(4avx2|7avxvnni|8avx512bw|10avx512vnni)'
# The best instruction set of this machine.
best=portable
for name in avx2 avx_vnni avx512bw avx512_vnni; do
  grep -qw "$name" /proc/cpuinfo && best=$(echo "$name" | tr -d _)
done
# Anything of the library as the baseline unit sees it, also as the argument of a foreign template.
ours='6pocket2v0[^_]|^_ZZ*N8baseline'

# Two units compiled for different processors share the inline functions of other libraries: the linker keeps the first
# one, whatever it was compiled for. The library's own functions are kept apart by their namespace, and templates over
# its types with them. What remains is listed here, all of it at
# -O0, where nothing is inlined; anything else is a failure.
debug_merges='^(float xsimd::(bit_cast|constants::)|std::numeric_limits<float>::|void std::__atomic_wait_address_v<)'

# merged LEVEL PROGRAM: the functions that the baseline unit defines or calls and that are foreign in the program.
merged() {
  nm "baseline$1.o" | awk '{print $NF}' | sort -u >names
  foreign "$2" | join -t '	' names - | grep -vE "$tagged" >all_merged
  grep -E "$ours" all_merged >own_merged
  if [ "$1" = -O0 ]; then known=$debug_merges; else known='^$'; fi
  grep -vE "$ours" all_merged | c++filt >others
  grep -vE "$known" others >unknown_merged
  grep -cE "$known" others >known_count
}

compile() { # UNIT LEVEL FLAG...
  unit=$1 level=$2
  shift 2
  "$compiler" -std=c++20 -Wall -Wextra -Wno-psabi -pthread -I"$source" "$level" "-DUNIT=$unit" "$@" \
    -c "$source/test/isa/unit.cpp" -o "$unit$level.o"
}

baseline_unit() { # LEVEL: what a plain #include brings
  foreign "baseline$1.o" >all
  grep -E "$tagged" all >in_tagged
  grep -vE "$tagged" all >outside
  check "$1: foreign instructions outside the kernels" empty outside
  check "$1: the AVX2 kernels hold AVX2 instructions, and the disassembler shows them" not_empty in_tagged
  nm -S --defined-only "baseline$1.o" >symbols
  check "$1: the portable kernels are there" grep -qE '6pocket2v08portable' symbols
}

haswell_unit() { # LEVEL: compiled for one target, it holds one instruction set
  nm -S --defined-only "haswell$1.o" >symbols
  grep -E '6pocket[^ ]*8portable' symbols >portable
  check "$1: portable kernels in a program compiled for Haswell" empty portable
  # IsaEntry is two pointers.
  awk '$NF ~ /isa_listE$/ && $2 != "0000000000000010"' symbols >tables
  check "$1: more than one entry in the table of a program compiled for Haswell" empty tables
  foreign "haswell$1.o" | grep -vE '4avx2' >in_haswell
  check "$1: the Haswell unit differs from the baseline" not_empty in_haswell
}

linked() { # LEVEL FIRST SECOND
  program=program$1-$2
  check "$1: linking $2 first" "$compiler" -pthread main.o "$2$1.o" "$3$1.o" -o "$program"
  merged "$1" "$program"
  check "$1, $2 first: the library's own functions were merged" empty own_merged
  check "$1, $2 first: foreign functions merged that are not on the list" empty unknown_merged
  echo "$compiler $1, $2 first: $(cat known_count) known functions of other libraries merged"
  if grep -qw avx2 /proc/cpuinfo; then
    check "$1, $2 first: baseline unit" exits 0 "kernels: $best" "./$program" baseline
    check "$1, $2 first: baseline unit, portable" exits 0 "kernels: portable" "./$program" baseline portable
    check "$1, $2 first: Haswell unit" exits 0 "kernels: avx2" "./$program" haswell
  fi
}

emulated() { # LEVEL
  old="qemu-x86_64-static -cpu Nehalem" new="qemu-x86_64-static -cpu Haswell"
  for first in baseline haswell; do
    program=./program$1-$first
    check "$1, $first first, Haswell: baseline unit" exits 0 "kernels: avx2" $new "$program" baseline
    # At -O0 the helpers listed above come from the first unit: only the baseline's own run on an older processor.
    [ "$1$first" = -O0haswell ] && continue
    check "$1, $first first, Nehalem: baseline unit" exits 0 "kernels: portable" $old "$program" baseline
    check "$1, $first first, Nehalem: AVX2 forced" exits 3 "does not have it" $old "$program" baseline avx2
  done
  check "$1, Nehalem: Haswell unit asks the processor" exits 3 "best here: no" $old "./program$1-baseline" haswell '?'
  # At -O2 the message itself may be put together with AVX: a program compiled for a processor promises no more.
  [ "$1" = -O0 ] || return
  check "$1, Nehalem: Haswell unit" exits 3 "does not have" $old "./program$1-baseline" haswell
}

examples() { # FLAG...: gemv and, with files and text, answer
  for example in gemv answer; do
    check "$example" "$compiler" -std=c++20 -O2 -pthread -I"$source" "$@" -c "$source/examples/$example.cpp" -o $example.o
    foreign $example.o >all
    grep -vE "$tagged" all >outside
    check "$example: foreign instructions outside the kernels" empty outside
  done
  check "gemv: linking" "$compiler" -pthread gemv.o -o gemv
  if grep -qw avx2 /proc/cpuinfo; then check "gemv here" exits 0 "$best: y[0] = " ./gemv; fi
  if command -v qemu-x86_64-static >/dev/null; then
    check "gemv, Nehalem" exits 0 "portable: y[0] = " qemu-x86_64-static -cpu Nehalem ./gemv
    check "gemv, Haswell" exits 0 "avx2: y[0] = " qemu-x86_64-static -cpu Haswell ./gemv
  fi
}

examples "$@"
check "main.cpp" "$compiler" -O1 -c "$source/test/isa/main.cpp" -o main.o
for level in -O0 -O2; do
  check "$level: baseline unit" compile baseline "$level" "$@"
  check "$level: Haswell unit" compile haswell "$level" "$@" -march=haswell
  [ "$failed" -eq 0 ] || exit 1
  baseline_unit "$level"
  haswell_unit "$level"
  linked "$level" baseline haswell
  linked "$level" haswell baseline
  if command -v qemu-x86_64-static >/dev/null; then
    emulated "$level"
  else
    echo "skipped: emulated processors (no qemu-x86_64-static)"
  fi
done
echo "$compiler: $checks checks, $failed failed"
[ "$failed" -eq 0 ]
