#!/usr/bin/env python3
"""Rewrite a GGUF file with every tensor as F32, the weights exactly as its blocks decode.

usage: dequantise.py IN.gguf OUT.gguf

llama.cpp multiplies quantised weights with activations rounded to 8 bits; on the F32 file it multiplies the very
same weights with float32 activations. Needs numpy. Types: F32, F16, BF16, Q8_0, Q4_0, Q4_1 (GGUF v3, ggml blocks of 32).
"""
import struct
import sys

import numpy as np

BLOCK = 32
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # GGUF value type: bytes
STRING, ARRAY = 8, 9


def nibbles(quants):
    """The low nibbles of a block's 16 bytes are its elements 0..15, the high ones 16..31."""
    return np.concatenate([quants & 15, quants >> 4], axis=1).astype(np.float32)


def decode(kind, data, count):
    if kind == 0:
        return np.frombuffer(data, '<f4', count)
    if kind == 1:
        return np.frombuffer(data, '<f2', count).astype(np.float32)
    if kind == 30:
        return (np.frombuffer(data, '<u2', count).astype(np.uint32) << 16).view(np.float32)
    fields = {8: [('d', '<f2'), ('q', 'i1', 32)], 2: [('d', '<f2'), ('q', 'u1', 16)],
              3: [('d', '<f2'), ('m', '<f2'), ('q', 'u1', 16)]}
    if kind not in fields:
        sys.exit(f'dequantise: tensor type {kind} is not supported')
    blocks = np.frombuffer(data, np.dtype(fields[kind]), count // BLOCK)
    scale = blocks['d'].astype(np.float32)[:, None]
    if kind == 8:
        return (blocks['q'].astype(np.float32) * scale).reshape(-1)
    if kind == 2:
        return ((nibbles(blocks['q']) - 8) * scale).reshape(-1)
    return (nibbles(blocks['q']) * scale + blocks['m'].astype(np.float32)[:, None]).reshape(-1)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value, = struct.unpack_from('<' + form, self.data, self.at)
        self.at += struct.calcsize('<' + form)
        return value

    def skip_string(self):
        length = self.number('Q')
        self.at += length

    def skip_value(self, kind):
        if kind == STRING:
            self.skip_string()
        elif kind == ARRAY:
            element, count = self.number('I'), self.number('Q')
            for _ in range(count) if element in (STRING, ARRAY) else ():
                self.skip_value(element)
            self.at += count * SCALARS.get(element, 0)
        else:
            self.at += SCALARS[kind]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data = np.memmap(sys.argv[1], np.uint8, 'r')
    read = Reader(data)
    if bytes(data[:4]) != b'GGUF' or struct.unpack_from('<I', data, 4)[0] != 3:
        sys.exit(f'dequantise: {sys.argv[1]} is not a GGUF v3 file')
    read.at = 8
    tensors, keys = read.number('Q'), read.number('Q')
    alignment = 32
    for _ in range(keys):
        begin = read.at
        read.skip_string()
        name = bytes(data[begin + 8:read.at])
        kind = read.number('I')
        if name == b'general.alignment':
            alignment = struct.unpack_from('<I', data, read.at)[0]
        read.skip_value(kind)
    head, infos = bytes(data[:read.at]), []
    for _ in range(tensors):
        begin = read.at
        read.skip_string()
        dims = [read.number('Q') for _ in range(read.number('I'))]
        shape = bytes(data[begin:read.at])
        infos.append((shape, int(np.prod(dims, dtype=np.int64)), read.number('I'), read.number('Q')))
    base = -(-read.at // alignment) * alignment
    with open(sys.argv[2], 'wb') as out:
        out.write(head)
        offset = 0
        for shape, count, _, _ in infos:
            out.write(shape + struct.pack('<IQ', 0, offset))
            offset += -(-count * 4 // alignment) * alignment
        for shape, count, kind, source in infos:
            out.write(bytes(-out.tell() % alignment))
            out.write(decode(kind, data[base + source:], count).astype('<f4').tobytes())
        out.write(bytes(-out.tell() % alignment))


if __name__ == '__main__':
    main()
