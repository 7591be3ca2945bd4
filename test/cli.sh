#!/bin/sh
# The pocket command as a user meets it: exit codes, sentences, nothing overwritten.
# usage: test/cli.sh POCKET SOURCE_DIR
set -u
pocket=$1
model=${POCKET_TEST_MODEL:-$2/models/SmolLM2-135M-Instruct.Q4_1.gguf}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect CODE TEXT COMMAND...: runs it, wants the exit code, and TEXT somewhere in what it prints.
expect() {
  code=$1 text=$2
  shift 2
  "$@" >"$work/out" 2>&1 </dev/null
  got=$?
  if [ "$got" != "$code" ] || ! grep -qF -- "$text" "$work/out"; then
    echo "FAILED: $*"
    echo "  exit code $got, expected $code; expected the text: $text; printed:"
    sed 's/^/  /' "$work/out"
    failed=$((failed + 1))
  fi
}

expect 0 "synthesize" "$pocket" --help
expect 0 "0." "$pocket" --version
expect 2 "subcommand" "$pocket"
expect 2 "--sillyness" "$pocket" inspect --sillyness
expect 2 "prompt" "$pocket" generate
expect 2 "activations" "$pocket" bench --activations a4
expect 2 "threads" "$pocket" bench --threads 0
expect 2 "threads" "$pocket" bench --threads many
expect 1 "/nowhere.gguf" "$pocket" inspect --model /nowhere.gguf

printf 'not a model at all' >"$work/text.gguf"
expect 1 "text.gguf" "$pocket" inspect --model "$work/text.gguf"
: >"$work/empty.gguf"
expect 1 "empty.gguf" "$pocket" inspect --model "$work/empty.gguf"
mkdir "$work/directory"
expect 1 "config.json" "$pocket" inspect --model "$work/directory"
expect 1 "directory that holds it" "$pocket" inspect --model "$2/test/data/hf/llama/model.safetensors"

# A Hugging Face directory is opened as it is, and made into a package, of which nothing is lost and nothing overwritten.
hf=$2/test/data/hf/qwen3
expect 0 "quantised" "$pocket" inspect --model "$hf"
expect 0 "3 layers" "$pocket" quantize "$hf" --out "$work/new/quantised"
expect 0 '"mapped_bytes"' "$pocket" inspect --model "$work/new/quantised" --json
sum=$(cksum <"$work/new/quantised/pocket.safetensors")
expect 1 "--force" "$pocket" quantize "$hf" --out "$work/new/quantised" --format w8_g32
[ "$sum" = "$(cksum <"$work/new/quantised/pocket.safetensors")" ] || { echo "FAILED: overwritten"; failed=$((failed + 1)); }
expect 0 "w8_g32" "$pocket" quantize "$hf" --out "$work/new/quantised" --format w8_g32 --force
[ "$sum" != "$(cksum <"$work/new/quantised/pocket.safetensors")" ] || { echo "FAILED: not replaced"; failed=$((failed + 1)); }
expect 0 "3 layers" "$pocket" quantize "$hf" --out "$work/one" --threads 1
[ "$sum" = "$(cksum <"$work/one/pocket.safetensors")" ] || { echo "FAILED: not the same bytes"; failed=$((failed + 1)); }
expect 0 "3 layers" "$pocket" quantize "$hf" --out "$work/none" --calibration none
[ "$sum" != "$(cksum <"$work/none/pocket.safetensors")" ] || { echo "FAILED: not calibrated"; failed=$((failed + 1)); }
expect 1 "/nowhere" "$pocket" quantize "$hf" --out "$work/two" --calibration /nowhere
expect 1 "tokenizer.json" "$pocket" quantize "$hf" --out "$work/two" --calibration "$2/README.md"
expect 2 "nothing is quantised" "$pocket" quantize "$hf" --out "$work/two" --format w8_g32 --calibration "$2/README.md"
expect 2 "a package already" "$pocket" quantize "$work/one" --out "$work/two"
expect 1 "/nowhere" "$pocket" quantize /nowhere --out "$work/two"
expect 2 "--out" "$pocket" quantize "$hf"
expect 2 "format" "$pocket" quantize "$hf" --out "$work/two" --format q4_k
[ ! -e "$work/two" ] || { echo "FAILED: a directory was made for nothing"; failed=$((failed + 1)); }

# The same weights for llama.cpp; what it cannot hold is named.
expect 0 "MB in Q8_0, F32, without a tokenizer" "$pocket" export "$work/new/quantised" --gguf "$work/q8.gguf"
expect 0 "w8_g32" "$pocket" inspect --model "$work/q8.gguf"
sum=$(cksum <"$work/q8.gguf")
expect 1 "--force" "$pocket" export "$hf" --gguf "$work/q8.gguf"
[ "$sum" = "$(cksum <"$work/q8.gguf")" ] || { echo "FAILED: overwritten"; failed=$((failed + 1)); }
expect 1 "token_embd.weight" "$pocket" export "$work/new/quantised" --gguf "$work/q8.gguf" --force --type q4_1
expect 0 "MB in F16, F32" "$pocket" export "$hf" --gguf "$work/q8.gguf" --force
expect 2 "--gguf" "$pocket" export "$hf"
expect 2 "type" "$pocket" export "$hf" --gguf "$work/other.gguf" --type q4_k
expect 1 "/nowhere" "$pocket" export /nowhere --gguf "$work/other.gguf"
[ ! -e "$work/other.gguf" ] || { echo "FAILED: a file was made for nothing"; failed=$((failed + 1)); }

# Validation: of a quantised model against its source, of the kernels against float64, against logits from elsewhere.
seq -s ' ' 1 60 >"$work/ids"
printf '[1, 2, 3, 999]' >"$work/wrong"
expect 0 "reference's" "$pocket" validate --model "$hf" --reference "$hf" --tokens "$work/ids" --greedy 4
expect 0 "kernels, A8" "$pocket" validate --model "$work/one" --reference "$hf" --tokens "$work/ids" --context 30 \
  --breakdown --greedy 0 --html "$work/page.html"
grep -q "</html>" "$work/page.html" || { echo "FAILED: no page"; failed=$((failed + 1)); }
expect 1 "--force" "$pocket" validate --model "$work/one" --tokens "$work/ids" --html "$work/page.html"
"$pocket" validate --model "$work/one" --tokens "$work/ids" --greedy 0 --json >"$work/report.json"
python3 - "$work/report.json" <<'END' || failed=$((failed + 1))
import json, sys
r = json.load(open(sys.argv[1]))
shares = [o['share_of_bound'] for layer in r['kernels']['layers'] for o in layer.values()]
assert r['text'] == {'from': r['text']['from'], 'windows': 1, 'length': 60, 'vocab': 384}, r['text']
assert len(r['kernels']['layers']) == 3 and 0 < max(shares) < 1, shares
assert 0 < r['total']['kl_mean'] < 1e-5 and r['total']['predicted'] == 59 and not r['faults'], r['total']
END
# One code of one matrix, changed in the file, is named.
cp -r "$work/one" "$work/nibble"
python3 - "$work/nibble/pocket.safetensors" <<'END'
import json, struct, sys
with open(sys.argv[1], 'r+b') as f:
    length, = struct.unpack('<Q', f.read(8))
    at = 8 + length + json.loads(f.read(length))['layers.1.down']['data_offsets'][0] + 64 + 5
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 8]))
END
expect 0 "layer 1, down: 1 of 15360 codes" "$pocket" validate --model "$work/nibble" --reference "$hf" \
  --tokens "$work/ids" --greedy 0
"$pocket" validate --model "$work/one" --reference "$hf" --tokens "$work/ids" --greedy 0 >"$work/out"
! grep "note:" "$work/out" || { echo "FAILED: a note for nothing"; failed=$((failed + 1)); }
expect 2 "not both" "$pocket" validate --model "$hf" --reference "$hf" --logits "$work/none.safetensors"
expect 2 "--reference" "$pocket" validate --model "$hf" --tokens "$work/ids" --breakdown
expect 1 "none.safetensors" "$pocket" validate --model "$hf" --logits "$work/none.safetensors"
expect 1 "'logits': is missing" "$pocket" validate --model "$hf" --logits "$hf/golden.safetensors"
expect 1 "token 3" "$pocket" validate --model "$hf" --tokens "$work/wrong"
expect 1 "not the same model" "$pocket" validate --model "$hf" --reference "$2/test/data/hf/llama" --tokens "$work/ids"
expect 1 "--tokens" "$pocket" validate --model "$hf"

expect 0 "170.5 MB" "$pocket" synthesize --spec mnn-pocket-0.3b --out "$work/package"
sum=$(cksum <"$work/package/pocket.safetensors")
expect 1 "--force" "$pocket" synthesize --out "$work/package"
[ "$sum" = "$(cksum <"$work/package/pocket.safetensors")" ] || { echo "FAILED: overwritten"; failed=$((failed + 1)); }
expect 2 "spec" "$pocket" synthesize --spec gpt5 --out "$work/other"
bytes=$(wc -c <"$work/package/pocket.safetensors")
{ [ "$bytes" -gt 165000000 ] && [ "$bytes" -lt 175000000 ]; } || { echo "FAILED: $bytes bytes"; failed=$((failed + 1)); }
expect 0 "896" "$pocket" inspect --model "$work/package" --context 512
expect 0 '"total_bytes"' "$pocket" inspect --model "$work/package" --context 512 --json
expect 2 "mmx" "$pocket" inspect --model "$work/package" --isa mmx
expect 2 "40960" "$pocket" inspect --model "$work/package" --context 50000
expect 1 "tokenizer" "$pocket" generate --model "$work/package" hello
expect 2 "nothing to measure" "$pocket" bench --model "$work/package" --prompt 0 --generate 0
expect 0 '"wall_share"' "$pocket" bench --model "$work/package" --prompt 4 --generate 2 --depth 3 --repeat 1 --json
expect 0 "attention" "$pocket" bench --model "$work/package" --prompt 0 --generate 2 --depth 3 --repeat 1 --profile
expect 0 '"parts"' "$pocket" bench --model "$work/package" --prompt 4 --generate 2 --repeat 1 --profile --json
expect 0 "attention" "$pocket" bench --model "$work/package" --prompt 4 --generate 0 --repeat 1 --profile
expect 2 "40960" "$pocket" bench --model "$work/package" --prompt 50000
head -c 100000000 "$work/package/pocket.safetensors" >"$work/directory/pocket.safetensors"
expect 1 "pocket.safetensors" "$pocket" inspect --model "$work/directory"

if [ -f "$model" ]; then
  expect 0 "Paris" "$pocket" generate --model "$model" --temperature 0 --max-tokens 20 "What is the capital of France?"
  expect 2 "prompt is empty" "$pocket" generate --model "$model" ""
  expect 1 "do not fit" "$pocket" generate --model "$model" --context 8 "What is the capital of France?"
  expect 2 "8192" "$pocket" generate --model "$model" --context 9000 "What is the capital of France?"
  # A package from it has its codes exactly, its tokenizer and its template: the same words.
  expect 0 "taken over exactly" "$pocket" quantize "$model" --out "$work/smol"
  for m in "$model" "$work/smol"; do
    "$pocket" generate --model "$m" --temperature 0 --max-tokens 40 --quiet "Why is the sky blue?" 2>&1
  done >"$work/out"
  "$pocket" generate --model "$model" --temperature 0 --max-tokens 40 --quiet "Why is the sky blue?" >"$work/twice" 2>&1
  cat "$work/twice" "$work/twice" | cmp -s - "$work/out" || { echo "FAILED: the package says:"; cat "$work/out"; failed=$((failed + 1)); }
  # In groups of 64 its codes are quantised anew, by what a text brings before them.
  expect 0 "30 layers" "$pocket" quantize "$model" --out "$work/text" --format w4_g64 --calibration "$2/README.md"
  expect 2 "at least 256" "$pocket" quantize "$model" --out "$work/two" --format w4_g64 --calibration "$2/.clang-format"
  expect 2 "nothing is quantised" "$pocket" quantize "$model" --out "$work/two" --calibration "$2/README.md"
  head -c 50000000 "$model" >"$work/cut.gguf"
  expect 1 "cut.gguf" "$pocket" inspect --model "$work/cut.gguf"
  printf 'My name is Anna.\nWhat is my name?\n' |
    "$pocket" chat --model "$model" --temperature 0 --max-tokens 30 --quiet >"$work/out" 2>&1
  grep -q "Anna" "$work/out" || { echo "FAILED: chat forgot the name:"; cat "$work/out"; failed=$((failed + 1)); }
else
  echo "skipped: no model at $model"
fi

[ "$failed" = 0 ] || exit 1
echo "command line: all as expected"
