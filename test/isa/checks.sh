# What isa.sh and isa_arm.sh check with, and count: read by them, in a folder of their own, with $compiler set.
failed=0 checks=0

# check TEXT COMMAND...: the command succeeds, or its output is shown.
check() {
  text=$1
  shift
  checks=$((checks + 1))
  if ! "$@" >out 2>&1; then
    echo "FAILED: $compiler: $text"
    head -n 20 out | sed 's/^/  /'
    failed=$((failed + 1))
  fi
}
empty() { [ ! -s "$1" ] || { c++filt <"$1"; false; }; }
not_empty() { [ -s "$1" ]; }
exits() { # CODE TEXT COMMAND...: with that exit code, after printing TEXT
  code=$1 wanted=$2
  shift 2
  "$@"
  got=$?
  [ "$got" = "$code" ] && grep -qF -- "$wanted" out || { echo "exit code $got, expected $code and: $wanted"; false; }
}
