# Reads `objdump -d --no-show-raw-insn`; prints a line for each function that holds an instruction beyond x86-64's
# baseline (SSE2): mangled name, tab, how many, tab, the first one.
# Not counted: tzcnt, which the baseline runs as bsf, and what compilers do not generate by themselves (aes, sha, crc32).
BEGIN {
  foreign = "^(v[a-z].*|andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt|movbe|ad[co]x"
  foreign = foreign "|addsubp[sd]|h(add|sub)p[sd]|lddqu|movddup|movs[hl]dup|fisttp.*"                 # SSE3
  foreign = foreign "|ph(add|sub).*|pmaddubsw|pmulhrsw|psign[bwd]|pabs[bwd]|palignr|pshufb"           # SSSE3
  foreign = foreign "|p?blend.*|dpp[sd]|extractps|insertps|mpsadbw|packusdw|pcmp(eq|gt)q|pextr[bdq]"  # SSE4
  foreign = foreign "|pinsr[bdq]|pm(ax|in)(sb|sd|ud|uw)|pmov[sz]x.*|pmuldq|pmulld|phminposuw|ptest|round[ps][sd])$"
}
/^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3); next }
/^ *[0-9a-f]+:\t/ {
  split($0, column, "\t")
  split(column[2], word, " ")
  i = 1
  while (word[i] ~ /^(data16|rep|repz|repnz|lock|bnd|notrack|cs)$/) ++i
  if (word[i] ~ foreign || column[2] ~ /%[yz]mm|%k[0-7]|%xmm(1[6-9]|2[0-9]|3[01])/) {
    if (!(name in count)) {
      sub(/ *[#<].*/, "", column[2])  # what objdump says about addresses: other functions' names
      first[name] = column[2]
    }
    ++count[name]
  }
}
END { for (name in count) print name "\t" count[name] "\t" first[name] }
