#!/usr/bin/env python3
"""llama.cpp on the CPU, timed without a sampler: the prebuilt library of npm's node-llama-cpp, called by ctypes.

  llama_cpp.py --library DIR --model FILE.gguf --threads N [--prompt 512] [--depth 512] [--generate 64] [--repeat 1]

DIR holds libllama.so* and one libggml-cpu-*.so for each kind of processor; llama.cpp takes the best. After a short
warm-up, each run prefills an empty context and decodes at the given depth. Prints one JSON object, tokens per second,
one value a run. The package brings no header: the parameter structures travel as opaque bytes, which llama.cpp fills
in, and of which only the first field of the context's (its size) is set. x86-64 Linux.
"""
import argparse
import ctypes
import glob
import json
import os
import time


class Blob(ctypes.Structure):  # larger than any of llama.cpp's parameter structures
    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6)]


class Llama:
    def __init__(self, library, model, threads, context):
        def load(name):
            found = sorted(glob.glob(os.path.join(library, name)))
            if not found:
                raise SystemExit(f"llama_cpp.py: {library} holds no {name}")
            return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)

        load("libggml-base*.so*")
        ggml = load("libggml.*so*")
        lib = self.lib = load("libllama.*so*")
        for name, result, arguments in (
            ("llama_model_default_params", Blob, []),
            ("llama_context_default_params", Blob, []),
            ("llama_model_load_from_file", ctypes.c_void_p, [ctypes.c_char_p, Blob]),
            ("llama_init_from_model", ctypes.c_void_p, [ctypes.c_void_p, Blob]),
            ("llama_batch_get_one", Batch, [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]),
            ("llama_decode", ctypes.c_int, [ctypes.c_void_p, Batch]),
            ("llama_set_n_threads", None, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]),
            ("llama_get_memory", ctypes.c_void_p, [ctypes.c_void_p]),
            ("llama_memory_clear", None, [ctypes.c_void_p, ctypes.c_bool]),
            ("llama_synchronize", None, [ctypes.c_void_p]),
            ("llama_log_set", None, [ctypes.c_void_p, ctypes.c_void_p]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.silence = log(lambda level, text, data: None)
        lib.llama_log_set(self.silence, None)
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(library.encode())
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama_cpp.py: llama.cpp cannot load {model}")
        parameters = lib.llama_context_default_params()
        ctypes.cast(ctypes.byref(parameters), ctypes.POINTER(ctypes.c_uint32))[0] = context
        self.context = lib.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit(f"llama_cpp.py: no context of {context} tokens")
        lib.llama_set_n_threads(self.context, threads, threads)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, tokens):
        """Seconds of one call; its batch is at most 512 tokens, as llama.cpp's own default."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        start = time.perf_counter()
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(tokens))) != 0:
            raise SystemExit("llama_cpp.py: llama_decode failed")
        self.lib.llama_synchronize(self.context)
        return time.perf_counter() - start

    def prefill(self, tokens):
        return sum(self.decode(tokens[i : i + 512]) for i in range(0, len(tokens), 512))


def main():
    parser = argparse.ArgumentParser(description="times llama.cpp; see the top of the file")
    parser.add_argument("--library", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=1)
    o = parser.parse_args()
    llama = Llama(o.library, o.model, o.threads, max(o.prompt, o.depth + o.generate) + 8)
    tokens = [300 + i * 2654435761 % 60000 for i in range(max(o.prompt, o.depth) + o.generate)]
    llama.prefill(tokens[:64])
    for token in tokens[:4]:
        llama.decode([token])
    result = {"model": os.path.basename(o.model), "threads": o.threads, "prefill": [], "decode": []}
    for _ in range(o.repeat):
        llama.clear()
        if o.prompt > 0:
            result["prefill"].append(o.prompt / llama.prefill(tokens[: o.prompt]))
        if o.generate > 0:
            if o.depth != o.prompt:
                llama.clear()
                llama.prefill(tokens[: o.depth])
            result["decode"].append(o.generate / sum(llama.decode([token]) for token in tokens[: o.generate]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
    os._exit(0)  # llama.cpp's own clean-up is of no interest
