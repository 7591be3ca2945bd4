"""Teacher-forced logits of a Hugging Face model as Transformers computes them, as a safetensors file.

The file, written one window at a time:
  tokens  I32 [windows, length]
  logits  F32 [windows, length, vocabulary]   row i of a window: after its token i
  metadata  format "pocket-logits-1", engine "transformers VERSION DTYPE"
Needs torch and transformers (with safetensors, which reads the model)."""
import argparse, json, pathlib, struct, sys

import torch, transformers

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("model", help="the model's directory")
p.add_argument("out", help="the safetensors file to write")
source = p.add_mutually_exclusive_group(required=True)
source.add_argument("--tokens", help="a file with one window of token ids on each line, all of one length")
source.add_argument("--text", help="a file of text, cut into windows by the model's tokenizer; the rest is left out")
p.add_argument("--length", type=int, default=512, help="tokens of a window of text (default: %(default)s)")
p.add_argument("--windows", type=int, help="at most so many windows")
p.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"])
a = p.parse_args()

if a.tokens:
    rows = [[int(t) for t in line.split()] for line in open(a.tokens) if line.strip()]
else:
    tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
    ids = tokenizer(pathlib.Path(a.text).read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    rows = [ids[i:i + a.length] for i in range(0, len(ids) - a.length + 1, a.length)]
tokens = torch.tensor(rows[:a.windows], dtype=torch.int32)
if tokens.numel() == 0: sys.exit("reference_logits: there is no whole window of tokens")
model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=getattr(torch, a.dtype)).eval()
shape, end = [*tokens.shape, model.get_output_embeddings().weight.shape[0]], 4 * tokens.numel()
header = json.dumps({
    "__metadata__": {"format": "pocket-logits-1", "engine": f"transformers {transformers.__version__} {a.dtype}"},
    "tokens": {"dtype": "I32", "shape": shape[:2], "data_offsets": [0, end]},
    "logits": {"dtype": "F32", "shape": shape, "data_offsets": [end, end + end * shape[2]]}}).encode()
header += b" " * (-len(header) % 8)
with open(a.out, "wb") as out, torch.inference_mode():
    out.write(struct.pack("<Q", len(header)) + header + tokens.numpy().tobytes())
    for window in tokens.long():
        out.write(model(window[None]).logits[0].float().numpy().tobytes())
