#!/bin/sh
# What test/isa.sh is for x86: a plain #include is safe on every AArch64. No dot product or matrix product, and nothing
# else beyond the baseline, outside the functions that are chosen at run time; forced on a processor without it, an
# instruction set is an error and not an illegal instruction.
# usage: test/isa_arm.sh SOURCE_DIR COMPILER [FLAG...]      exit code 77: nothing to check here
set -u
export LC_ALL=C
source=$1
shift
compiler=$*
objdump=objdump
command -v aarch64-linux-gnu-objdump >/dev/null && objdump=aarch64-linux-gnu-objdump
if ! "$@" -dM -E -x c++ /dev/null 2>/dev/null | grep -qw __aarch64__ || ! command -v $objdump >/dev/null; then
  echo "skipped: needs a compiler for AArch64 and its objdump"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
. "$source/test/isa/checks.sh"

# Function and instruction, for each instruction beyond Armv8.0: products of bytes, bfloat16, float16 arithmetic,
# atomics, SVE.
foreign() {
  $objdump -d --no-show-raw-insn "$1" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3); next }
    /^ *[0-9a-f]+:\t/ {
      split($0, column, "\t")
      split(column[2], word, " ")
      if (word[1] ~ /^(([su]|us|su)dot|(s|u|us)mmla|bf(dot|mmla|mlal[bt]|cvt.*)|fmlal2?|fmlsl2?|sqrdml[as]h|cas.*|swp.*|ld(add|clr|eor|set).*|ldapr.*|fcadd|fcmla)$/ ||
          column[2] ~ /[ ,{]z[0-9]+\.[bhsdq]|(fadd|fmul|fmla|fcvtns) *v[0-9]+\.[48]h/)
        print name "\t" word[1]
    }' | sort -u
}

cat >main.cpp <<'END'
namespace baseline {
int run(const char* isa);
}
int main(int argc, char** argv) { return baseline::run(argc > 1 ? argv[1] : nullptr); }
END
for level in -O0 -O2; do
  check "$level: compiles" "$@" -std=c++20 -Wall -Wextra -pthread -I"$source" $level -DUNIT=baseline \
    -c "$source/test/isa/unit.cpp" -o unit.o
  [ "$failed" -eq 0 ] || exit 1
  foreign unit.o >all
  # pocket::v0::neon_dotprod holds sdot, pocket::v0::neon_i8mm smmla as well.
  grep -E '^_ZZ*NK*6pocket2v012neon_dotprod' all >dotprod
  grep -E '^_ZZ*NK*6pocket2v09neon_i8mm' all >i8mm
  grep -vE '^_ZZ*NK*6pocket2v0(12neon_dotprod|9neon_i8mm)' all >outside
  check "$level: foreign instructions outside the kernels" empty outside
  grep -vE '	sdot$' dotprod >outside
  check "$level: more than sdot in the kernels for the dot product" empty outside
  check "$level: sdot in its kernels, and the disassembler shows it" not_empty dotprod
  grep -E '	smmla$' i8mm >smmla
  check "$level: smmla in its kernels, and the disassembler shows it" not_empty smmla
  command -v qemu-aarch64-static >/dev/null || continue
  check "$level: links" "$@" -pthread -static main.cpp unit.o -o program
  for pair in cortex-a53:neon cortex-a76:neon_dotprod max:neon_i8mm; do
    cpu=${pair%:*} best=${pair#*:}
    check "$level, $cpu" exits 0 "kernels: $best" qemu-aarch64-static -cpu "$cpu" ./program
  done
  check "$level, cortex-a53: portable" exits 0 "kernels: portable" qemu-aarch64-static -cpu cortex-a53 ./program portable
  check "$level, cortex-a53: sdot forced" exits 3 "does not have it" qemu-aarch64-static -cpu cortex-a53 ./program neon_dotprod
  check "$level, cortex-a53: smmla forced" exits 3 "does not have it" qemu-aarch64-static -cpu cortex-a53 ./program neon_i8mm
  check "$level, cortex-a76: smmla forced" exits 3 "does not have it" qemu-aarch64-static -cpu cortex-a76 ./program neon_i8mm
done
echo "$compiler: $checks checks, $failed failed"
[ "$failed" -eq 0 ]
