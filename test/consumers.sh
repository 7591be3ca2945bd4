#!/bin/bash
# Pocket where builds look for it: both examples, built by strangers' projects (test/consumers/) and run.
# usage: test/consumers.sh SOURCE_DIR [WAY...]      ways: pkgconfig meson subproject cmake checkout; default: all
#
#   pkgconfig    a Makefile with pkg-config         the installed tree
#   meson        dependency('pocket')               the installed tree
#   subproject   the same project, with the sources under subprojects/pocket
#   cmake        find_package(pocket)               the installed tree, moved after it was installed
#   checkout     -I SOURCE_DIR and nothing else: gemv alone
#
# Everything happens in a temporary folder; the compiler is $CXX or g++. Exit code 1 if anything failed.
set -u
export LC_ALL=C
source=$(cd "${1:?usage: test/consumers.sh SOURCE_DIR [WAY...]}" && pwd) || exit 1
shift
ways=("$@")
[ $# -gt 0 ] || ways=(pkgconfig meson subproject cmake checkout)
export CXX=${CXX:-g++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix moved=$work/elsewhere
model=${POCKET_TEST_MODEL:-$source/models/SmolLM2-135M-Instruct.Q4_1.gguf}
checks=0 failed=0
# A stranger's build knows nothing of the one that runs this test, nor of another Pocket on this machine.
unset MAKEFLAGS MAKELEVEL DESTDIR CPPFLAGS CXXFLAGS LDFLAGS
export PKG_CONFIG_PATH=$prefix/share/pkgconfig

check() { # TEXT COMMAND...: the command succeeds, or its output is shown
  local text=$1
  shift
  checks=$((checks + 1))
  if "$@" > "$work/out" 2>&1; then return 0; fi
  echo "FAILED: $text"
  tail -n 30 "$work/out" | sed 's/^/  /'
  failed=$((failed + 1))
  return 1
}
says() { # PATTERN COMMAND...: succeeds and prints a line like that
  local pattern=$1
  shift
  "$@" > "$work/said" 2>&1
  local code=$?
  cat "$work/said"
  [ "$code" = 0 ] && grep -qE -- "$pattern" "$work/said"
}
refuses() { # PATTERN COMMAND...: fails and says why in such a line
  local pattern=$1
  shift
  "$@" > "$work/said" 2>&1
  local code=$?
  cat "$work/said"
  [ "$code" != 0 ] && tr -s '\n ' ' ' < "$work/said" | grep -qE -- "$pattern"
}
lacks() { # PATTERN COMMAND...: succeeds without such a line
  local pattern=$1
  shift
  "$@" > "$work/said" 2>&1
  local code=$?
  cat "$work/said"
  [ "$code" = 0 ] && ! grep -qE -- "$pattern" "$work/said"
}

run_gemv() { # WAY PROGRAM
  check "$1: gemv prints its product" says '^[a-z0-9_]+: y\[0\] = [0-9.]+, with unquantised weights [0-9.]+$' "$2"
  check "$1: gemv is not linked with Highway" lacks 'hwy' ldd "$2"
}
run_examples() { # WAY FOLDER
  run_gemv "$1" "$2/gemv"
  check "$1: answer says how it is called" refuses 'usage: answer' "$2/answer"
  if [ -f "$model" ]; then
    check "$1: answer answers" says 'Paris' "$2/answer" "$model" "What is the capital of France?"
  fi
}

install_tree() {
  check "meson setup" meson setup "$work/build" "$source" --prefix="$prefix" --wrap-mode=nofallback \
    -Dtools=false -Dtests=false -Dbench=disabled &&
    check "meson install" meson install -C "$work/build" || return 1
  check "nothing but headers, their licence and where to find them is installed" lacks . find "$prefix" -type f \
    ! -name '*.hpp' ! -name '*.inl' ! -name 'pocket*.pc' ! -name 'pocketConfig*.cmake' ! -path '*/pocket/LICENSE'
  cp -r "$prefix" "$moved"
}

way_pkgconfig() {
  check "pkgconfig: the version" says '^0\.' pkg-config --modversion pocket
  check "pkgconfig: the core links nothing but threads" says '^(-pthread)? *$' pkg-config --libs pocket
  check "pkgconfig: a moved tree is found" says "-I$moved/include/pocket " \
    env PKG_CONFIG_PATH="$moved/share/pkgconfig" pkg-config --define-prefix --cflags pocket
  check "pkgconfig: build" make -j2 -C "$source/test/consumers/pkgconfig" EXAMPLES="$source/examples" OUT="$work" || return
  run_examples pkgconfig "$work"
}

way_meson() {
  check "meson: setup" meson setup "$work/meson" "$source/test/consumers/meson" --wrap-mode=nofallback \
    -Dexamples="$source/examples" &&
    check "meson: build" meson compile -C "$work/meson" || return
  run_examples meson "$work/meson"
}

way_subproject() {
  local project=$work/subproject
  mkdir -p "$project/subprojects"
  cp "$source"/test/consumers/meson/meson* "$project"
  ln -s "$source" "$project/subprojects/pocket"
  # Pocket asks for nothing that only its own tests and tools need.
  check "subproject: setup" lacks 'CLI11|[Cc]atch2|eigen|benchmark' meson setup "$project/build" "$project" \
    --force-fallback-for=pocket,pocket-files -Dexamples="$source/examples" || return
  check "subproject: build" meson compile -C "$project/build" || return
  check "subproject: nothing of Pocket's own is built" lacks '.' find "$project/build/subprojects" -type f
  run_examples subproject "$project/build"
}

configure() { # FOLDER ARGUMENT...
  local build=$1
  shift
  cmake -S "$source/test/consumers/cmake" -B "$build" -DEXAMPLES="$source/examples" "$@"
}
way_cmake() {
  if ! command -v cmake > /dev/null; then
    echo "skipped: find_package (there is no cmake)"
    return
  fi
  mv "$prefix" "$prefix.gone"
  check "cmake: setup" says 'pocket_VERSION 0\.' configure "$work/cmake" -DCMAKE_PREFIX_PATH="$moved" -DPOCKET_WANTED=0.1 &&
    check "cmake: build" cmake --build "$work/cmake" -j2 &&
    run_examples cmake "$work/cmake"
  check "cmake: another series is not taken" refuses 'compatible with requested' \
    configure "$work/newer" -DCMAKE_PREFIX_PATH="$moved" -DPOCKET_WANTED=0.2
  check "cmake: what is missing is named" refuses 'misses: the package nlohmann_json \(Debian: nlohmann-json3-dev\)' \
    configure "$work/without" -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
  mv "$prefix.gone" "$prefix"
}

way_checkout() {
  check "checkout: build" "$CXX" -std=c++20 -O1 -I"$source" "$source/examples/gemv.cpp" -o "$work/plain" -pthread &&
    run_gemv checkout "$work/plain"
}

for example in gemv answer; do
  lines=$(wc -l < "$source/examples/$example.cpp")
  check "examples/$example.cpp has $lines lines, not under 40" [ "$lines" -lt 40 ]
done
[ -f "$model" ] || echo "skipped: answers of the model (there is none at $model)"
if install_tree; then
  for way in "${ways[@]}"; do
    begin=$SECONDS
    "way_$way"
    echo "$way: $((SECONDS - begin)) s"
  done
fi
echo "consumers.sh: $checks checks, $failed failed"
[ "$failed" -eq 0 ]
