#!/usr/bin/env python3
"""A Hugging Face directory from a GGUF file of a llama or qwen3 model: config.json and model.safetensors in BF16.

usage: gguf_to_hf.py IN.gguf OUT_DIRECTORY

The weights are what the blocks decode to, rounded to BF16: a model in BF16, to hold quantised ones and Transformers
against. Rows of q and k of llama models are put back into the rotate-half order. No tokenizer: `pocket quantize`
writes tokenizer files beside its package. Needs gguf and numpy from PyPI.
"""
import json
import os
import struct
import sys

import gguf
import numpy as np

PARTS = {'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm', 'attn_q': 'self_attn.q_proj',
         'attn_k': 'self_attn.k_proj', 'attn_v': 'self_attn.v_proj', 'attn_output': 'self_attn.o_proj',
         'attn_q_norm': 'self_attn.q_norm', 'attn_k_norm': 'self_attn.k_norm', 'ffn_gate': 'mlp.gate_proj',
         'ffn_up': 'mlp.up_proj', 'ffn_down': 'mlp.down_proj'}
TOP = {'token_embd': 'model.embed_tokens', 'output_norm': 'model.norm', 'output': 'lm_head'}


def hf_name(name):
    if not name.startswith('blk.'):
        return TOP[name.removesuffix('.weight')] + '.weight'
    _, layer, part, _ = name.split('.')
    return f'model.layers.{layer}.{PARTS[part]}.weight'


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype('<u2')


def rotate_half_order(w, heads):
    head_dim = w.shape[0] // heads
    return w.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source = gguf.GGUFReader(sys.argv[1])
    field = {k: v.contents() for k, v in source.fields.items()}
    kind = field['general.architecture']
    get = lambda key, other=None: field.get(f'{kind}.{key}', other)
    heads, hidden = get('attention.head_count'), get('embedding_length')
    tensors = {hf_name(t.name): t for t in source.tensors}
    config = {
        'architectures': [{'llama': 'LlamaForCausalLM', 'qwen3': 'Qwen3ForCausalLM'}[kind]], 'model_type': kind,
        'hidden_size': hidden, 'intermediate_size': get('feed_forward_length'),
        'num_hidden_layers': get('block_count'), 'num_attention_heads': heads,
        'num_key_value_heads': get('attention.head_count_kv', heads),
        'head_dim': get('attention.key_length', hidden // heads),
        'rms_norm_eps': round(get('attention.layer_norm_rms_epsilon'), 9), 'rope_theta': get('rope.freq_base', 1e4),
        'vocab_size': int(tensors['model.embed_tokens.weight'].shape[1]), 'hidden_act': 'silu',
        'max_position_embeddings': get('context_length'), 'tie_word_embeddings': 'lm_head.weight' not in tensors,
        'bos_token_id': field.get('tokenizer.ggml.bos_token_id'),
        'eos_token_id': field.get('tokenizer.ggml.eos_token_id'), 'attention_bias': False, 'mlp_bias': False,
        'dtype': 'bfloat16'}
    header, offset = {'__metadata__': {'format': 'pt'}}, 0
    for name, t in tensors.items():
        size = 2 * int(np.prod(t.shape))
        header[name] = {'dtype': 'BF16', 'shape': [int(n) for n in reversed(t.shape)],
                        'data_offsets': [offset, offset + size]}
        offset += size
    os.makedirs(sys.argv[2], exist_ok=True)
    with open(os.path.join(sys.argv[2], 'config.json'), 'w', encoding='utf-8') as out:
        json.dump(config, out, indent=1)
    with open(os.path.join(sys.argv[2], 'model.safetensors'), 'wb') as out:
        text = json.dumps(header).encode()
        text += b' ' * (-(len(text) + 8) % 64)
        out.write(struct.pack('<Q', len(text)) + text)
        for name, t in tensors.items():
            values = gguf.dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape)))
            if kind == 'llama' and 'q_proj' in name:
                values = rotate_half_order(values, heads)
            if kind == 'llama' and 'k_proj' in name:
                values = rotate_half_order(values, config['num_key_value_heads'])
            out.write(bf16(values).tobytes())


main()
