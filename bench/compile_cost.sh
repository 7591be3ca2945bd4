#!/bin/bash
# What including Pocket costs: compile time, the compiler's memory, and the size of the program, of both examples.
#
#   bench/compile_cost.sh [--markdown] [--runs N] [--flags "FLAGS"] [COMPILER...]
#
# Compilers: those of g++ and clang++-19 that are there. FLAGS: "-O2" (after -std=c++20). For comparison, an empty
# program and one that includes pocket/pocket.hpp and calls nothing.
#
#   CPU s      of compiling one unit, user and system time of the compiler and all that it starts; the least of N runs
#              (3), since other work on the machine can only add to it. Without linking.
#   MB         the most memory that one process of it held (2^20 bytes)
#   code, file KB (1000 bytes) of the stripped program: text and initialised data; the whole file. Shared libraries (C++
#              runtime, PCRE2, utf8proc) are not counted.
#
# Needs bash, python3, pkg-config, binutils; for `answer`, the libraries of pocket/files.
set -euo pipefail
cd "$(dirname "$0")/.."

markdown=0 runs=3 flags=-O2 compilers=()
while [ $# -gt 0 ]; do
  case $1 in
    --markdown) markdown=1 ;;
    --runs) runs=${2:?a number of runs} && shift ;;
    --flags) flags=${2:?compiler flags} && shift ;;
    -*) sed -n '2,16s/^# \{0,1\}//p' "$0"; [ "$1" = --help ]; exit ;;
    *) compilers+=("$1") ;;
  esac
  shift
done
if [ ${#compilers[@]} = 0 ]; then
  for c in g++ clang++-19; do command -v $c > /dev/null && compilers+=($c); done
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'int main() {}' > "$work/empty.cpp"
printf '#include "pocket/pocket.hpp"\nint main() {}\n' > "$work/include.cpp"

python3 - "$work" "$markdown" "$runs" "$flags" "${compilers[@]}" <<'PYTHON'
import os, shlex, subprocess, sys

work, markdown, runs, flags = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]), shlex.split(sys.argv[4])
compilers = sys.argv[5:]


def pkg_config(what, *names):
    return shlex.split(subprocess.run(["pkg-config", what, *names], capture_output=True, text=True).stdout)


kernels, files = ["xsimd", "libhwy"], ["nlohmann_json", "libpcre2-8", "libutf8proc"]
programs = [  # name, source, packages whose flags it needs, libraries
    ("an empty program", f"{work}/empty.cpp", [], []),
    ("`pocket/pocket.hpp` alone", f"{work}/include.cpp", kernels, []),
    ("`examples/gemv.cpp`", "examples/gemv.cpp", kernels, []),
    ("`examples/answer.cpp`", "examples/answer.cpp", kernels + files, pkg_config("--libs", *files)),
]


def compile_once(command):
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)  # of the driver and of what it waited for
    if status != 0:
        sys.exit("failed: " + " ".join(command))
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def row(compiler, name, source, packages, libraries):
    compile = [compiler, "-std=c++20", *flags, "-I.", *pkg_config("--cflags", *packages)] if packages else \
              [compiler, "-std=c++20", *flags, "-I."]
    costs = [compile_once([*compile, "-c", source, "-o", f"{work}/unit.o"]) for _ in range(runs)]
    subprocess.run([compiler, *flags, f"{work}/unit.o", "-o", f"{work}/program", "-pthread", *libraries], check=True)
    subprocess.run(["strip", f"{work}/program"], check=True)
    size = subprocess.run(["size", f"{work}/program"], check=True, capture_output=True, text=True).stdout
    text, data = (int(v) for v in size.splitlines()[1].split()[:2])
    return [name, compiler, f"{min(c[0] for c in costs):.1f}", f"{min(c[1] for c in costs):.0f}",
            f"{(text + data) / 1000:.0f}", f"{os.path.getsize(f'{work}/program') / 1000:.0f}"]


titles = ["program", "compiler", "CPU s", "MB", "code KB", "file KB"]
if markdown:
    print("| " + " | ".join(titles) + " |\n|---|---|---|---|---|---|")
else:
    print("{:28} {:12} {:>7} {:>6} {:>8} {:>8}".format(*titles))
for program in programs:
    for compiler in compilers:
        cells = row(compiler, *program)
        print("| " + " | ".join(cells) + " |" if markdown else
              "{:28} {:12} {:>7} {:>6} {:>8} {:>8}".format(cells[0].replace("`", ""), *cells[1:]), flush=True)
PYTHON
