#!/bin/bash
# What the documents show is true: C++ samples compile, `pocket` commands and options exist, links lead to files.
# usage: test/snippets.sh SOURCE_DIR POCKET_PROGRAM [COMPILER [FLAG...]]      the compiler is g++ if none is given
#
#   ```cpp blocks of README.md and docs/*.md    compiled without code generation, warnings as errors. A block is a unit;
#                                               one that begins with "// in a function" is put into one
#   other blocks, and code within a line        after `pocket SUB`, every option must stand in `pocket SUB --help`; an
#                                               option alone (`--json`) in some subcommand's help
#   [text](path)                                the file exists, seen from the document
# Before all that, the same checks must find the mistakes of a document that has one of each kind.
set -u
export LC_ALL=C.UTF-8
source=$1 program=$2
shift 2
[ $# -gt 0 ] || set -- g++
compile=("$@" -std=c++20 -fsyntax-only -Wall -Wextra -Wconversion -Wshadow -Werror -fno-exceptions -fno-rtti "-I$source")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0 failed=0

problem() { # DOCUMENT LINE TEXT
  echo "FAILED: ${1#"$source"/}:$2: $3"
  failed=$((failed + 1))
}

# ---- C++ samples

# Writes each C++ block of a document to DIR/LINE.cpp, LINE being that of its fence. Line numbers of diagnostics are the
# document's.
extract_cpp() { # DOCUMENT DIR
  awk -v name="$1" -v dir="$2" '
    function finish() {
      if (in_function) print "return {};\n}" > file
      close(file)
      inside = in_function = 0
    }
    inside && /^```/ { finish(); next }
    inside && NR == first && /^\/\/ in a function/ {
      in_function = 1
      print "#include \"pocket/pocket.hpp\"\npocket::Expected<void> snippet();\npocket::Expected<void> snippet() {\nusing namespace pocket;" > file
      print "#line " NR " \"" name "\"" > file
    }
    inside { print > file; next }
    /^```(cpp|c\+\+)/ { inside = 1; first = NR + 1; file = dir "/" NR ".cpp"; print "#line " NR + 1 " \"" name "\"" > file; next }
    /^```/ { other = !other }
    END { if (inside || other) { print "a block that never ends" > (dir "/" NR ".cpp") } }' "$1"
}

check_cpp() { # DOCUMENT
  local dir unit
  dir=$(mktemp -d -p "$work")
  extract_cpp "$1" "$dir"
  for unit in "$dir"/*.cpp; do
    [ -e "$unit" ] || continue
    checks=$((checks + 1))
    if ! "${compile[@]}" -x c++ "$unit" > "$work/log" 2>&1; then
      problem "$1" "$(basename "$unit" .cpp)" "this sample does not compile"
      grep -E 'error|warning' "$work/log" | head -n 5 | sed "s|$source/||; s/^/  /"
    fi
  done
}

# ---- commands

# help SUB, or help '' for the program itself: cached.
help() {
  local file=$work/help.$1
  if [ ! -e "$file" ]; then
    # shellcheck disable=SC2086
    "$program" $1 --help > "$file" 2>&1 || echo "help failed" >> "$file"
  fi
  cat "$file"
}

subcommands() { help '' | awk '/^Subcommands/ { list = 1; next } list && /^  [a-z]/ { print $1 }'; }

# One line for each command: LINE pocket ARGUMENT..., of blocks (what stands after two spaces is explanation, of which
# the options count), and of code within a line. An option alone gives LINE - OPTION.
extract_commands() { # DOCUMENT
  awk '
    function words(text,    parts, n, i) {
      gsub(/"[^"]*"/, "TEXT", text)
      n = split(text, parts, /&&|\|\||[|;]/)
      for (i = 1; i <= n; i++) command(parts[i])
    }
    function command(text,    more) {
      sub(/^ *(\$ )?/, "", text)
      while (text ~ /^[A-Z_]+=[^ ]* /) sub(/^[^ ]* +/, "", text)
      if (text !~ /^([^ ]*\/)?pocket( |$)/) return
      sub(/^[^ ]+/, "pocket", text)
      if (match(text, /[^ ]   *[^ ]/)) {  # the explanation
        more = substr(text, RSTART + 1)
        text = substr(text, 1, RSTART)
        while (match(more, /--[a-z][a-z0-9-]*/)) {
          text = text " " substr(more, RSTART, RLENGTH)
          more = substr(more, RSTART + RLENGTH)
        }
      }
      print NR, text
    }
    /^```/ { block = block ? 0 : ($0 ~ /^```(cpp|c\+\+)/ ? 2 : 1); next }
    block == 2 { next }
    block == 1 { words($0); next }
    {
      n = split($0, spans, "`")
      for (i = 2; i < n; i += 2) {
        words(spans[i])
        if (match(spans[i], /^--[a-z][a-z0-9_-]*/)) {
          option = substr(spans[i], 1, RLENGTH)
          if (option !~ /_/) print NR, "-", option  # with an underscore it is one of Google Benchmark
        }
      }
    }' "$1"
}

has_option() { grep -qE -- "(^|[ ,])$2([^a-zA-Z0-9-]|\$)" <<< "$1"; } # HELP OPTION

check_commands() { # DOCUMENT
  local line name rest sub text word known all
  known=$(subcommands)
  all=$(for sub in '' $known; do help "$sub"; done)
  if [ -z "$known" ]; then
    problem "$1" 1 "$program --help names no subcommands"
    return
  fi
  while read -r line name rest; do
    checks=$((checks + 1))
    if [ "$name" = - ]; then
      has_option "$all" "$rest" || problem "$1" "$line" "pocket has no option $rest"
      continue
    fi
    sub='' text=$(help '')
    if [[ $rest =~ ^[a-z] ]]; then
      sub=${rest%% *}
      if ! grep -qx -- "$sub" <<< "$known"; then
        problem "$1" "$line" "there is no 'pocket $sub'"
        continue
      fi
      text=$(help "$sub")
    fi
    for word in ${rest#"$sub"}; do
      word=${word%%=*}
      if [[ $word =~ ^(--[a-z][a-z0-9-]*|-[a-zA-Z])$ ]] && ! has_option "$text" "$word"; then
        problem "$1" "$line" "'pocket${sub:+ $sub}' has no option $word"
      fi
    done
  done < <(extract_commands "$1")
}

# ---- links

check_links() { # DOCUMENT
  local line target
  while read -r line target; do
    checks=$((checks + 1))
    [ -e "$(dirname "$1")/$target" ] || problem "$1" "$line" "the link to $target leads nowhere"
  done < <(awk '
    /^```/ { block = !block; next }
    block { next }
    {
      text = $0
      while (match(text, /\]\([^)]+\)/)) {
        target = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, RSTART + RLENGTH)
        sub(/ .*/, "", target)
        sub(/#.*/, "", target)
        if (target != "" && target !~ /^[a-z]+:/) print NR, target
      }
    }' "$1")
}

# ---- do the checks find anything?

self_test() {
  local found sub wanted
  sub=$(subcommands | head -n 1)
  cat > "$work/good.md" << END
[a link](good.md#top) to [elsewhere](https://example.org/)
\`\`\`cpp
int f(int x);
int f(int x) { return x; }
\`\`\`
\`\`\`cpp
// in a function
POCKET_TRY(memory, Workspace::allocate(64));
if (memory.bytes() != 64) return fail(Errc::out_of_memory, "too little");
\`\`\`
\`\`\`
pocket $sub --help   shows --help
\`\`\`
END
  cat > "$work/bad.md" << END
[a link](nowhere.md) and \`--no-such-option\` and \`pocket no_such_command\`
\`\`\`cpp
int f(int x) { return "no number"; }
\`\`\`
\`\`\`
X=1 pocket $sub --help --no-such-block-option
cd x && build/tools/pocket $sub "a question"    a text with --no-such-explained-option
\`\`\`
END
  check_cpp "$work/good.md" && check_commands "$work/good.md" && check_links "$work/good.md"
  found=$(check_cpp "$work/bad.md"; check_commands "$work/bad.md"; check_links "$work/bad.md")
  for wanted in 'bad.md:1: the link to nowhere.md' 'bad.md:1: pocket has no option --no-such-option' \
    "bad.md:1: there is no 'pocket no_such_command'" 'bad.md:2: this sample does not compile' \
    "bad.md:6: 'pocket $sub' has no option --no-such-block-option" \
    "bad.md:7: 'pocket $sub' has no option --no-such-explained-option"; do
    grep -qF -- "$wanted" <<< "$found" || problem "$source/test/snippets.sh" 1 "the checks do not find: $wanted"
  done
  if [ "$(grep -c '^FAILED' <<< "$found")" != 6 ]; then
    problem "$source/test/snippets.sh" 1 "the checks find more or less than the six mistakes there are"
    echo "$found"
  fi
}

main() {
  local document
  if ! printf '#include <xsimd/xsimd.hpp>\n#include <hwy/highway.h>\n#include <nlohmann/json.hpp>\n' |
    "${compile[@]}" -w -x c++ - > /dev/null 2>&1; then
    echo "skipped: ${compile[0]} finds no xsimd, Highway or nlohmann-json without further flags"
    exit 77
  fi
  self_test
  checks=0
  for document in "$source"/README.md "$source"/docs/*.md; do check_cpp "$document"; done
  [ "$checks" -gt 0 ] || problem "$source/README.md" 1 "there is no C++ sample"
  for document in "$source"/{README,third_party/README,bench/README,test/peer/README}.md "$source"/docs/*.md; do
    check_commands "$document"
  done
  for document in "$source"/{README,CHANGELOG,third_party/README,bench/README,test/peer/README}.md "$source"/docs/*.md; do
    check_links "$document"
  done
  echo "snippets: $checks checks, $failed failed"
  [ "$failed" -eq 0 ]
}

main
