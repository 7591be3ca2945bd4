#!/bin/sh
# examples/answer with the real model, where there is one. usage: example_answer.sh PROGRAM SOURCE_DIR
model=${POCKET_TEST_MODEL:-$2/models/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ ! -f "$model" ]; then
  echo "skipped: no model at $model"
  exit 0
fi
"$1" "$model" "What is the capital of France?" | grep -q Paris || exit 1
"$1" /nowhere.gguf "Anyone?" 2>/dev/null && exit 1
echo "answer: as expected"
