#!/usr/bin/env python3
"""Executed instructions of the AArch64 kernels, counted exactly under QEMU's user emulation, beside other libraries'.

usage: bench/arm/count.py [--compiler COMPILER] [--case SUBSTRING] [--keep DIRECTORY]

Needs a cross compiler (default aarch64-linux-gnu-g++) and qemu-aarch64-static; no Arm processor. See bench/README.md.
"""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# name, instruction set, kernel, form, m, n, k, unit, bar: the most that the library sets itself
CASES = [
    ('decode A8', 'neon_dotprod', 'matmul', 'a8', 1, 256, 896, 'weight', 0.21),
    ('decode A8', 'neon_i8mm', 'matmul', 'a8', 1, 256, 896, 'weight', 0.21),
    ('decode A16', 'neon_dotprod', 'matmul', 'a16', 1, 256, 896, 'weight', 0.34),
    ('decode A16', 'neon_i8mm', 'matmul', 'a16', 1, 256, 896, 'weight', 0.24),
    ('m = 2, A8', 'neon_dotprod', 'matmul', 'a8', 2, 256, 896, 'MAC', None),
    ('m = 2, A8', 'neon_i8mm', 'matmul', 'a8', 2, 256, 896, 'MAC', None),
    ('m = 8, A8', 'neon_dotprod', 'matmul', 'a8', 8, 256, 896, 'MAC', 0.115),
    ('m = 64, A8', 'neon_dotprod', 'matmul', 'a8', 64, 256, 896, 'MAC', 0.115),
    ('m = 8, A8', 'neon_i8mm', 'matmul', 'a8', 8, 256, 896, 'MAC', 0.085),
    ('m = 64, A8', 'neon_i8mm', 'matmul', 'a8', 64, 256, 896, 'MAC', 0.085),
    ('m = 8, A16', 'neon_dotprod', 'matmul', 'a16', 8, 256, 896, 'MAC', None),
    ('m = 8, A16', 'neon_i8mm', 'matmul', 'a16', 8, 256, 896, 'MAC', None),
    ('decode A8', 'neon', 'matmul', 'a8', 1, 256, 896, 'weight', None),
    ('decode A16', 'neon', 'matmul', 'a16', 1, 256, 896, 'weight', None),
    ('m = 8, A8', 'neon', 'matmul', 'a8', 8, 256, 896, 'MAC', None),
    ('prepare A8', 'neon', 'prepare', 'a8', 4, 0, 896, 'element', 4),
    ('prepare A16', 'neon', 'prepare', 'a16', 4, 0, 896, 'element', 4),
    # one of 7 heads: a multiply-add for the score and one for the value, 256 positions x head_dim 64
    ('attention, 7 heads', 'neon', 'attention', 'a8', 7, 256, 64, 'MAC', None),
]


def instructions(emulator, program, case, runs, log):
    _, isa, kernel, form, m, n, k, _, _ = case
    command = [emulator, '-cpu', 'max', '-singlestep', '-d', 'exec,nochain', '-D', log,
               program, isa, kernel, 'w4_g64', form, str(m), str(n), str(k), str(runs)]
    subprocess.run(command, check=True)
    with open(log, 'rb') as lines:
        count = sum(1 for line in lines if line.startswith(b'Trace'))
    os.remove(log)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--compiler', default='aarch64-linux-gnu-g++', help='with flags, if it needs any')
    parser.add_argument('--emulator', default='qemu-aarch64-static')
    parser.add_argument('--case', default='', help='only cases whose name and instruction set contain this')
    parser.add_argument('--keep', metavar='DIRECTORY', help='leave the program there')
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        program = os.path.join(o.keep or scratch, 'instructions')
        subprocess.run(shlex.split(o.compiler) + ['-std=c++20', '-O2', '-static', '-I' + ROOT, '-o', program,
                       os.path.join(ROOT, 'bench', 'arm', 'instructions.cpp')], check=True)
        over = 0
        print('%-20s %-14s %14s %10s %9s' % ('kernel', 'instructions', 'executed', 'per', 'bar'))
        for case in CASES:
            name, isa, kernel, _, m, n, k, unit, bar = case
            if o.case not in name + ' ' + isa:
                continue
            log = os.path.join(scratch, 'log')
            one = instructions(o.emulator, program, case, 1, log)
            per_run = instructions(o.emulator, program, case, 2, log) - one
            units = {'matmul': m * n * k, 'prepare': m * k, 'attention': 2 * m * n * k}[kernel]
            value = per_run / units
            missed = bar is not None and value > bar
            over += missed
            print('%-20s %-14s %14d %.4f %-7s %s%s' % (name, isa, per_run, value, unit, bar or '',
                                                       '  MISSED' if missed else ''), flush=True)
    return 1 if over else 0


if __name__ == '__main__':
    sys.exit(main())
