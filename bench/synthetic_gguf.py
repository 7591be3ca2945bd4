"""A GGUF file of MNN-Pocket-0.3B's shape with seeded random weights, for llama.cpp's speed: Q4_0 or Q4_1 throughout, the
head tied to the embedding. Needs Python alone."""
import random
import struct

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 28, 896, 14, 2, 64, 2560, 65536
FORMATS = {"q4_0": (2, 18, struct.pack("<e", 0.0044)), "q4_1": (3, 20, struct.pack("<ee", 0.0044, -0.033))}
F32 = 0
U32_VALUE, F32_VALUE, STRING_VALUE, ARRAY_VALUE = 4, 6, 8, 9


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING_VALUE) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", F32_VALUE, value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", ARRAY_VALUE, STRING_VALUE, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack("<II", U32_VALUE, value)


def vocabulary():
    """Distinct strings and one merge, which is all that a byte-level tokenizer must have to load."""
    return [chr(0x4E00 + i // 256) + chr(0x4E00 + i % 256) for i in range(VOCAB - 3)] + ["a", "b", "ab"]


def tensors():
    yield "token_embd.weight", (HIDDEN, VOCAB)
    for i in range(LAYERS):
        for name, shape in (
            ("attn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HEADS * HEAD_DIM)), ("attn_k", (HIDDEN, KV_HEADS * HEAD_DIM)),
            ("attn_v", (HIDDEN, KV_HEADS * HEAD_DIM)), ("attn_q_norm", (HEAD_DIM,)), ("attn_k_norm", (HEAD_DIM,)),
            ("attn_output", (HEADS * HEAD_DIM, HIDDEN)), ("ffn_norm", (HIDDEN,)), ("ffn_gate", (HIDDEN, FFN)),
            ("ffn_up", (HIDDEN, FFN)), ("ffn_down", (FFN, HIDDEN)),
        ):
            yield f"blk.{i}.{name}.weight", shape
    yield "output_norm.weight", (HIDDEN,)


def matrix(source, values, block_bytes, scale):
    data = bytearray(source.randbytes(values // 32 * block_bytes))
    for i, byte in enumerate(scale):
        data[i::block_bytes] = bytes([byte]) * (values // 32)
    return data


def write(path, name, seed=1):
    kind, block_bytes, scale = FORMATS[name]
    fields = {
        "general.architecture": "qwen3", "general.name": "MNN-Pocket-0.3B, synthetic", "general.file_type": kind,
        "general.quantization_version": 2, "qwen3.block_count": LAYERS, "qwen3.context_length": 40960,
        "qwen3.embedding_length": HIDDEN, "qwen3.feed_forward_length": FFN, "qwen3.attention.head_count": HEADS,
        "qwen3.attention.head_count_kv": KV_HEADS, "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM, "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6, "qwen3.vocab_size": VOCAB, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": vocabulary(), "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }
    source = random.Random(seed)
    table, data = b"", []
    offset = 0
    for tensor, shape in tensors():
        values = 1
        for n in shape:
            values *= n
        plain = len(shape) == 1
        content = struct.pack("<f", 1.0) * values if plain else matrix(source, values, block_bytes, scale)
        table += text(tensor) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        table += struct.pack("<IQ", F32 if plain else kind, offset)
        data.append(content)
        padding = -len(content) % 32
        data.append(bytes(padding))
        offset += len(content) + padding
    head = b"GGUF" + struct.pack("<IQQ", 3, len(data) // 2, len(fields)) + b"".join(field(k, v) for k, v in fields.items())
    head += table
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for part in data:
            f.write(part)
