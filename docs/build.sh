#!/bin/sh
# Makes the reference of the headers from their comments. usage: docs/build.sh SOURCE_DIR OUT_DIR VERSION [DOXYGEN]
#
# Fails on any warning of Doxygen's, also for classes and functions without a comment. Constructors, operators, fields,
# enumerators, aliases and const functions without arguments may stand without one: their names, and the comment of what
# they belong to, have to do.
set -eu
cd "$1"
POCKET_DOCS_OUT=$2 POCKET_VERSION=$3
export POCKET_DOCS_OUT POCKET_VERSION LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$2"
rm -rf "$2/html" "$2/warnings.txt"
"${4:-doxygen}" docs/Doxyfile

problems=$(sed "s|^$PWD/||" "$2/warnings.txt" | awk '
  / is not documented\.$/ {
    if (/ \((variable|enumvalue|typedef)\) of /) next
    if (/\(\) const( noexcept)? \(function\) of /) next
    if (/ Member operator/) next
    if (match($0, /Member ~?[A-Za-z0-9_]+\(/)) {
      member = substr($0, RSTART + 7, RLENGTH - 8)
      sub(/^~/, "", member)
      owner = $0
      sub(/ is not documented\.$/, "", owner)
      sub(/.* of (class|struct) /, "", owner)
      sub(/ *<.*/, "", owner)
      sub(/.*::/, "", owner)
      if (owner == member) next
    }
  }
  { print }')
if [ -n "$problems" ]; then
  echo "$problems"
  echo "docs/build.sh: $(echo "$problems" | wc -l) warnings" >&2
  exit 1
fi
[ -s "$2/html/index.html" ] || { echo "docs/build.sh: Doxygen wrote no $2/html/index.html" >&2; exit 1; }
echo "the reference: $2/html/index.html"
