#!/usr/bin/env python3
"""Executed instructions of the AArch64 kernels, counted exactly under QEMU's user emulation, beside other libraries'.

usage: bench/arm/count.py [--compiler COMPILER] [--case TEXT] [--mca COMMAND] [--markdown] [--keep DIRECTORY]

Needs a cross compiler (aarch64-linux-gnu-g++ by default) and qemu-aarch64-static, no Arm processor. Where llvm-mca-19 is
installed, it also estimates the cycles of each kernel's innermost loop. Exit code 1: more instructions than the bar.
bench/README.md says what the figures mean.
"""
import argparse
import collections
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# name, instruction set, kernel, format, activations, m, n, k, unit, bar: the most that we allow ourselves, which peer
CASES = [
    ('decode A8', 'neon_dotprod', 'matmul', 'w4_g64', 'a8', 1, 256, 896, 'weight', 0.21, 'decode'),
    ('decode A8', 'neon_i8mm', 'matmul', 'w4_g64', 'a8', 1, 256, 896, 'weight', 0.21, 'decode'),
    ('decode A8', 'neon', 'matmul', 'w4_g64', 'a8', 1, 256, 896, 'weight', None, None),
    ('decode A16', 'neon_dotprod', 'matmul', 'w4_g64', 'a16', 1, 256, 896, 'weight', 0.34, None),
    ('decode A16', 'neon_i8mm', 'matmul', 'w4_g64', 'a16', 1, 256, 896, 'weight', 0.24, None),
    ('decode A16', 'neon', 'matmul', 'w4_g64', 'a16', 1, 256, 896, 'weight', None, None),
    ('2 tokens, A8', 'neon_dotprod', 'matmul', 'w4_g64', 'a8', 2, 256, 896, 'MAC', None, None),
    ('2 tokens, A8', 'neon_i8mm', 'matmul', 'w4_g64', 'a8', 2, 256, 896, 'MAC', None, None),
    ('8 tokens, A8', 'neon_dotprod', 'matmul', 'w4_g64', 'a8', 8, 256, 896, 'MAC', 0.115, 'dotprod'),
    ('64 tokens, A8', 'neon_dotprod', 'matmul', 'w4_g64', 'a8', 64, 256, 896, 'MAC', 0.115, 'dotprod'),
    ('8 tokens, A8', 'neon_i8mm', 'matmul', 'w4_g64', 'a8', 8, 256, 896, 'MAC', 0.085, 'i8mm'),
    ('64 tokens, A8', 'neon_i8mm', 'matmul', 'w4_g64', 'a8', 64, 256, 896, 'MAC', 0.085, 'i8mm'),
    ('8 tokens, A8', 'neon', 'matmul', 'w4_g64', 'a8', 8, 256, 896, 'MAC', None, None),
    ('8 tokens, A16', 'neon_dotprod', 'matmul', 'w4_g64', 'a16', 8, 256, 896, 'MAC', None, None),
    ('8 tokens, A16', 'neon_i8mm', 'matmul', 'w4_g64', 'a16', 8, 256, 896, 'MAC', None, None),
    ('decode A8, w4_g32', 'neon_dotprod', 'matmul', 'w4_g32', 'a8', 1, 256, 896, 'weight', None, None),
    ('decode A8, w8_g32', 'neon_dotprod', 'matmul', 'w8_g32', 'a8', 1, 256, 896, 'weight', None, None),
    ('8 tokens, A8, w4_g32', 'neon_dotprod', 'matmul', 'w4_g32', 'a8', 8, 256, 896, 'MAC', None, None),
    ('8 tokens, A8, w4_g32', 'neon_i8mm', 'matmul', 'w4_g32', 'a8', 8, 256, 896, 'MAC', None, None),
    ('8 tokens, A8, w8_g32', 'neon_dotprod', 'matmul', 'w8_g32', 'a8', 8, 256, 896, 'MAC', None, None),
    ('8 tokens, A8, w8_g32', 'neon_i8mm', 'matmul', 'w8_g32', 'a8', 8, 256, 896, 'MAC', None, None),
    ('activations to A8', 'neon', 'prepare', 'w4_g64', 'a8', 4, 0, 896, 'element', 4, 'pack'),
    ('activations to A16', 'neon', 'prepare', 'w4_g64', 'a16', 4, 0, 896, 'element', 4, 'pack'),
    # per multiply-add, of which a position needs head_dim for its score and head_dim for its value
    ('attention, 7 heads', 'neon', 'attention', 'w4_g64', 'a8', 7, 256, 64, 'MAC', None, None),
]

# Counted in the same way, with 8-bit activations: KleidiAI 495f6524, ggml d99724f2 (m = 8 and 64; k = 896).
PEERS = [
    ('KleidiAI, asymmetric INT4, group 64 (qsi8d32p x qai4c32p): the same arithmetic',
     {'decode': '0.267 to 0.282', 'i8mm': '0.096', 'dotprod': '0.123', 'pack': '4.9 to 11.1'}),
    ('KleidiAI, symmetric INT4, group 64 (qai8dxp x qsi4c32p): no minima',
     {'decode': '0.210', 'i8mm': '0.085', 'dotprod': '0.112 to 0.116', 'pack': '3 to 6'}),
    ('ggml, Q4_0, group 32: no minima',
     {'decode': '0.260 to 0.315', 'i8mm': '0.103 to 0.133', 'dotprod': '0.126 to 0.156', 'pack': '3.9'}),
]

# Processors whose cycles llvm-mca estimates.
PROCESSORS = {'neoverse-v2': ['-mcpu=neoverse-v2'],
              'cortex-a510': ['-mcpu=cortex-a510', '-mattr=+dotprod,+i8mm,+fullfp16']}


def trace(emulator, program, case, runs, log):
    """How often each address was executed."""
    _, isa, kernel, weights, form, m, n, k = case[:8]
    command = [emulator, '-cpu', 'max', '-singlestep', '-d', 'exec,nochain', '-D', log,
               program, isa, kernel, weights, form, str(m), str(n), str(k), str(runs)]
    subprocess.run(command, check=True)
    count = collections.Counter()
    with open(log, encoding='ascii') as lines:
        for line in lines:
            if line.startswith('Trace'):
                count[line.split('/', 2)[1]] += 1
    os.remove(log)
    return count


def hottest_loop(count, program, objdump):
    """Its instructions, without branches, and how often it was executed: of the runs of neighbouring addresses that were
    executed equally often, the one with most executed instructions."""
    times = {int(address, 16): n for address, n in count.items()}
    best, begin, end = 0, 0, 0
    for first in times:
        if times.get(first - 4) == times[first]:
            continue
        last = first
        while times.get(last + 4) == times[first]:
            last += 4
        if times[first] * (last - first + 4) > best:
            best, begin, end = times[first] * (last - first + 4), first, last + 4
    text = subprocess.run([objdump, '-d', '--no-show-raw-insn', '--start-address=%d' % begin, '--stop-address=%d' % end,
                           program], check=True, capture_output=True, text=True).stdout
    lines = [re.sub(r'\s*(//|<).*', '', line.split('\t', 1)[1]) for line in text.splitlines()
             if re.match(r'\s*[0-9a-f]+:\t', line)]
    return [line for line in lines if not re.match(r'(b|b\..*|cbn?z|tbn?z|ret)\s', line + ' ')], times[begin]


def cycles(mca, options, lines):
    """Of one iteration, with all loads met in the first-level cache; None where llvm-mca cannot say."""
    run = subprocess.run(shlex.split(mca) + ['-mtriple=aarch64', '-iterations=100'] + options, input='\n'.join(lines) + '\n',
                         capture_output=True, text=True)
    total = re.search(r'Total Cycles:\s+(\d+)', run.stdout)
    return int(total.group(1)) / 100 if total else None


def show(rows, markdown):
    if markdown:
        rows.insert(1, ['---'] * len(rows[0]))
        for row in rows:
            print('| ' + ' | '.join(row) + ' |')
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--compiler', default='aarch64-linux-gnu-g++', help='with flags, if it needs any')
    parser.add_argument('--emulator', default='qemu-aarch64-static')
    parser.add_argument('--objdump', default='aarch64-linux-gnu-objdump')
    parser.add_argument('--mca', default='llvm-mca-19', help='left out where there is none')
    parser.add_argument('--case', default='', help='only cases whose name and instruction set contain this')
    parser.add_argument('--markdown', action='store_true')
    parser.add_argument('--keep', metavar='DIRECTORY', help='leave the program there')
    o = parser.parse_args()
    mca = o.mca if shutil.which(shlex.split(o.mca)[0]) else None
    rows = [['kernel', 'instruction set', 'instructions', 'bar'] +
            ['cycles in the loop, ' + name for name in PROCESSORS if mca]]
    over = 0
    with tempfile.TemporaryDirectory() as scratch:
        program = os.path.join(o.keep or scratch, 'instructions')
        subprocess.run(shlex.split(o.compiler) + ['-std=c++20', '-O2', '-static', '-I' + ROOT, '-o', program,
                       os.path.join(ROOT, 'bench', 'arm', 'instructions.cpp')], check=True)
        for case in CASES:
            name, isa, kernel, _, _, m, n, k, unit, bar, _ = case
            if o.case not in name + ' ' + isa:
                continue
            log = os.path.join(scratch, 'log')
            count = trace(o.emulator, program, case, 2, log)
            count.subtract(trace(o.emulator, program, case, 1, log))
            count = +count
            units = {'matmul': m * n * k, 'prepare': m * k, 'attention': 2 * m * n * k}[kernel]
            value = sum(count.values()) / units
            missed = bar is not None and value > bar
            over += missed
            row = [name, isa, '%.4g a %s' % (value, unit), ('%g%s' % (bar, ': MISSED' if missed else '')) if bar else '']
            if mca:
                lines, times = hottest_loop(count, program, o.objdump)
                for options in PROCESSORS.values():
                    loop = cycles(mca, options, lines)
                    row.append('%.4f a %s' % (loop * times / units, unit) if loop else '')
            rows.append(row)
    show(rows, o.markdown)
    print()
    show([['other libraries, 8-bit activations', 'decode, a weight', 'many tokens, a MAC: dotprod', 'i8mm',
           'activations, an element']] +
         [[name, f['decode'], f['dotprod'], f['i8mm'], f['pack']] for name, f in PEERS], o.markdown)
    if not mca:
        print('\nno %s: no cycles' % o.mca)
    return 1 if over else 0


if __name__ == '__main__':
    sys.exit(main())
