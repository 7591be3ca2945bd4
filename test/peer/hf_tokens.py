"""Golden token ids of Hugging Face's own tokenizers, for test/hf_tokenizer.cpp.

usage: hf_tokens.py QWEN3-TOKENIZER-DIRECTORY OUTPUT-DIRECTORY

Reads Qwen3's tokenizer.json and tokenizer_config.json. Writes a small tokenizer cut from them (the merges that the
corpus uses, under new ids, with Qwen3's settings and added tokens) and golden.json: for every text the ids of the full
vocabulary, of the cut one, and of the cut one under other settings ("variants"), as they are and with special tokens
taken as plain text ("plain", where that differs). Needs the Python package tokenizers; the same output every time.
"""
import hashlib
import json
import os
import sys

import tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))

# Beside the texts that llama.cpp was asked for: what is not in NFC, what only some tokenizers tell apart.
NORMAL_FORMS = [
    "e\u0301", "cafe\u0301 caf\u00e9", "A\u030angstro\u0308m \u212bngstr\u00f6m", "o\u0323\u0302 o\u0302\u0323 \u1ed9", "\u0301e", "a\u0315\u0300\u05ae\u0300b",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "\ud55c\uae00 \uac00\u11a8 \u1100\u1161\u1161", "\u2126 \u212a \u2000|\u2001|", "\u0958 \u0915\u093c", "\u09c7\u09be \u0bc6\u0bd7",
    "\u304b\u3099\u304d\u3099 \u30cf\u309a", "\uf900\ufa0e\ufb1d \u05d0\u05b7", "\U0001d15e \U0001d157\U0001d165", "\u1e9b\u0323 \ufb01", "x\u0338=\u0338 \u226e", "\u0344 \u0308\u0301",
    "ti\u1ec3u nho\u0323\u0302 Vie\u0323\u0302t Nam", "\u0438\u0306 \u0439", "e\u0301" * 40, "e" + "\u0323\u0301" * 20, "<|im_end|>\u0301e\u0301<think>e\u0301", "cafe\u0301t cafe\u0301 na\u0308ive na\u0308",
]
MARKERS = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHello<|im_end|>\n", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
    "<think>2+2</think>4", "<|endoftext|><|endoftext|>", "<|im_end", "<thinking>", "a <|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>", "<|im_start|><|im_start", "<|vision_start|><|image_pad|><|vision_end|>",
]
DIGITS = ["1", "12", "123", "1234", "12345678", "3.14159", "1,000,000", "\u0661\u0662\u0663\u0664", "\u00bd\u2166x\u00b2", "a1b22c333d4444", "2024-01-31T23:59:59Z"]
WORDS = ["it'\u017f it'S IT'S we'Ll I'VE o'clock 'tis 'Re", "a'Sb I'LLbe it'\u017fx 'reX we'VEry", "\u01c5 \u2160\u24b6", "\u180e \u200b \u2060x", "a\u0085b\u2028c", "\x1c\x1d\x1e\x1f x", "\r\n \r\r\n\t\n x", "the  quick   brown    fox", "foo(bar)[0]->baz;\r\n\r\n  // end",
         "\u963f\u5f25\u9640\u4f5b\u3002\u5357\u65e0", "mixed \u4e2d\u6587English\u6df7\u5408123\uff0c\u3002", "https://example.org/a?b=c&d=%20#e", "printf(\"%5.2f\\n\", x);", "SELECT * FROM t WHERE a='b';", "<p class=\"x\">&nbsp;</p>"]


def corpus():
    with open(os.path.join(HERE, "..", "data", "smollm2_tokens.json"), encoding="utf-8") as f:
        old = [one["text"] for one in json.load(f)["cases"]]
    return list(dict.fromkeys(old + NORMAL_FORMS + MARKERS + DIGITS + WORDS))


def join(merge):
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def cut(full, texts):
    """The byte tokens, the tokens that the texts need, and what those are merged from."""
    made_by = {}
    for merge in map(join, full["model"]["merges"]):
        made_by.setdefault("".join(merge), merge)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(full))
    added = {t["content"] for t in full["added_tokens"]}
    wanted = [t for text in texts for t in tokenizer.encode(text, add_special_tokens=False).tokens if t not in added]
    needed = set()
    while wanted:
        token = wanted.pop()
        if token in needed or token not in made_by:
            continue
        needed.add(token)
        wanted += made_by[token]
    vocab = [t for t in full["model"]["vocab"] if len(t) == 1]
    assert len(vocab) == 256
    merges = []
    for merge in map(join, full["model"]["merges"]):
        token = "".join(merge)
        if token in needed and made_by[token] == merge:
            merges.append(merge)
            vocab.append(token)
    small = dict(full)
    small["model"] = dict(full["model"], vocab={t: i for i, t in enumerate(vocab)}, merges=merges)
    small["added_tokens"] = [dict(t, id=len(vocab) + i) for i, t in enumerate(full["added_tokens"])]
    return small


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def variants(small):
    """Each: fields to replace, fields of the model to replace, every how-many-th merge to drop, tokens to add."""
    split = small["pre_tokenizer"]["pretokenizers"][0]
    three = split["pattern"]["Regex"].replace("|\\p{N}|", "|\\p{N}{1,3}|")
    assert three != split["pattern"]["Regex"]
    end = small["added_tokens"][-1]["id"] + 1
    more = [("cafe\u0301", True, False), ("na\u0308", False, False), ("\u00e9t", True, True)]
    return {
        "gpt-2": {"replace": {"normalizer": None, "pre_tokenizer": byte_level(True)}},
        "smollm": {"replace": {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level(True)]}}},
        # Without some merges, whole words in the vocabulary are reached by ignore_merges alone.
        "llama-bpe": {"replace": {"normalizer": {"type": "Sequence", "normalizers": []}, "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": three}, "behavior": "Isolated", "invert": False}, byte_level(False)]}},
            "model": {"ignore_merges": True}, "drop_merges": 5},
        "normalized": {"add": [
            {"id": end + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": normalized, "special": special} for i, (text, normalized, special) in enumerate(more)]},
    }


def apply(small, variant):
    made = dict(small, **variant.get("replace", {}))
    made["model"] = dict(small["model"], **variant.get("model", {}))
    if every := variant.get("drop_merges"):
        made["model"]["merges"] = [m for i, m in enumerate(small["model"]["merges"]) if i % every != 0]
    made["added_tokens"] = small["added_tokens"] + variant.get("add", [])
    return made


def encode(document, texts):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    special = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    tokenizer.encode_special_tokens = True
    return special, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = sys.argv[1:]
    with open(os.path.join(source, "tokenizer.json"), "rb") as f:
        data = f.read()
    full = json.loads(data)
    with open(os.path.join(source, "tokenizer_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    texts = corpus()
    small = cut(full, texts)
    kinds = variants(small)
    ids = {"full": encode(full, texts), "cut": encode(small, texts)}
    ids.update((name, encode(apply(small, variant), texts)) for name, variant in kinds.items())

    numbers = {t["content"]: t["id"] for t in small["added_tokens"]}
    if "added_tokens_decoder" in config:
        config["added_tokens_decoder"] = {
            str(numbers[t["content"]]): t for t in config["added_tokens_decoder"].values()}
    generation = {"bos_token_id": numbers["<|endoftext|>"], "pad_token_id": numbers["<|endoftext|>"],
                  "eos_token_id": [numbers["<|im_end|>"], numbers["<|endoftext|>"]]}

    def write(name, document):
        with open(os.path.join(target, name), "w", encoding="ascii") as f:
            f.write(document + "\n")

    write("tokenizer.json", json.dumps(small, separators=(",", ":")))
    write("tokenizer_config.json", json.dumps(config, indent=1))
    write("generation_config.json", json.dumps(generation, indent=1))
    lines = []
    for i, text in enumerate(texts):
        # A variant's ids are left out where they are the cut tokenizer's.
        case = {"text": text}
        for field, which in ("ids", 0), ("plain", 1):
            case[field] = {name: both[which][i] for name, both in ids.items()
                           if name in ("full", "cut") or both[which][i] != ids["cut"][which][i]}
        if case["plain"] == case["ids"]:
            del case["plain"]
        lines.append(json.dumps(case, separators=(",", ":")))
    write("golden.json", '{"peer":"tokenizers %s","full":"sha256:%s",\n"variants":%s,\n"cases":[\n%s\n]}' % (
        tokenizers.__version__, hashlib.sha256(data).hexdigest(), json.dumps(kinds, separators=(",", ":")),
        ",\n".join(lines)))


main()
