#!/usr/bin/env python3
"""Two small random models as Transformers writes them, and the logits that Transformers computes from those files.

usage: hf_model.py DIRECTORY      makes DIRECTORY/qwen3 and DIRECTORY/llama (replacing what is there)

  qwen3  BF16, tied, two shards and an index, head_dim 64 with a hidden size of 96 and 4 heads, RoPE base 1e6
  llama  F16, an lm_head of its own, one file, head_dim = hidden / heads, RoPE base 1e4

Hidden and feed-forward sizes are no multiples of 64: rows end in groups that are not full. Matrices are normal with
deviation 1/sqrt(inputs): products keep their input's size, so that every branch counts. Each norm has weights of its
own, 0.5 to 1.5 times a level; the levels of q and k make attention neither uniform nor a single peak. The same seeds
give the same files.

Beside each model, golden.safetensors:
  tokens      I32  [positions]
  float32     F32  [positions, vocab]   logits, weights and all arithmetic in float32
  low         the same in the file's own type (BF16, F16): weights, activations, every operation's result
  float64, float64_rest
              F32  their sum is the logits in float64, to 48 bits
All with attn_implementation="eager": the formulas, no fused kernel.
"""

import contextlib
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

POSITIONS = 24


def fill(model, seed):
    generator = torch.Generator().manual_seed(seed)
    levels = {"q_norm": 1.5, "k_norm": 1.5, "model.norm": 2.0}
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
            else:
                level = next((l for part, l in levels.items() if part in name), 1.0)
                weight.copy_(level * (0.5 + torch.rand(weight.shape, generator=generator)))
            if "llama" in model.config.model_type and ("q_proj" in name or "k_proj" in name):
                weight.mul_(1.4)  # there is no norm of q and k to do it


@contextlib.contextmanager
def float32_is_float64():
    """Transformers asks for float32 in norms, rotary tables and softmax whatever the model's type. Within this block
    it gets float64 there: its own formulas, without their rounding."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept


def logits(path, dtype, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    if dtype != torch.float64:
        with torch.no_grad():
            return model(tokens[None]).logits[0]
    with float32_is_float64(), torch.no_grad():
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        assert model.model.rotary_emb.inv_freq.dtype == torch.float64
        return model(tokens[None]).logits[0]


def make(path, model, seed, dtype, **saving):
    shutil.rmtree(path, ignore_errors=True)
    fill(model, seed)
    model.to(dtype).save_pretrained(path, **saving)
    os.remove(os.path.join(path, "generation_config.json"))  # nothing that the logits depend on
    vocab = model.config.vocab_size
    tokens = torch.randint(vocab, (POSITIONS,), generator=torch.Generator().manual_seed(seed + 1))
    tokens[10:14] = tokens[2:6]  # something to attend to
    exact = logits(path, torch.float64, tokens)
    golden = {
        "tokens": tokens.to(torch.int32),
        "float32": logits(path, torch.float32, tokens),
        "low": logits(path, dtype, tokens),
        "float64": exact.to(torch.float32),
        "float64_rest": (exact - exact.to(torch.float32).double()).to(torch.float32),
    }
    save_file(golden, os.path.join(path, "golden.safetensors"))

    def distance(a):
        return ((a.double() - exact).norm() / exact.norm()).item()

    print(path, json.dumps({
        "deviation": round(exact.std().item(), 3), "largest": round(exact.abs().max().item(), 3),
        "float32": distance(golden["float32"]), "low": distance(golden["low"])}))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    shape = {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    qwen3 = transformers.Qwen3Config(
        **shape, num_hidden_layers=3, head_dim=64, intermediate_size=160, vocab_size=384, tie_word_embeddings=True,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    llama = transformers.LlamaConfig(
        **{**shape, "hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1}, num_hidden_layers=2,
        intermediate_size=112, vocab_size=256, tie_word_embeddings=False,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    root = sys.argv[1]
    make(os.path.join(root, "qwen3"), transformers.Qwen3ForCausalLM(qwen3), 1, torch.bfloat16, max_shard_size="450KB")
    make(os.path.join(root, "llama"), transformers.LlamaForCausalLM(llama), 2, torch.float16)


main()
