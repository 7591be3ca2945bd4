#!/usr/bin/env python3
"""Pocket beside llama.cpp on this machine, in alternation: tokens per second, ratios, spread.

  bench/compare.py                          1 thread, then all cores; five rounds; a table
  bench/compare.py --rounds 9 --threads 1 --out bench/results/NAME.json

Needs a build (meson setup build && ninja -C build) and, for llama.cpp, npm: node-llama-cpp is installed once into
build/peer, without running its scripts. Both engines run MNN-Pocket-0.3B's shape with random weights, which are made once
(170 MB each): llama.cpp as Q4_0, its fastest 4-bit format, which computes with 8-bit activations. Each round runs every
engine once, as a process of its own with its own warm-up, in an order that moves on by one from round to round. A ratio is
taken within each round. Leave the machine alone meanwhile.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import synthetic_gguf  # noqa: E402

PACKAGE = "node-llama-cpp@3.21.1"


def say(message):
    print(message, file=sys.stderr, flush=True)


def made(path, make):
    """The file at `path`, made beside it first where it is missing."""
    if not os.path.exists(path):
        say(f"making {path}")
        make(path + ".part")
        os.rename(path + ".part", path)
    return path


def peer_library(folder):
    def install(target):
        if shutil.which("npm") is None:
            raise SystemExit("compare: npm is missing; install it, or give --library a folder with llama.cpp's libraries")
        os.makedirs(target, exist_ok=True)
        with open(os.path.join(target, "package.json"), "w", encoding="utf-8") as f:
            f.write('{"private": true}\n')
        subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "-E", PACKAGE], cwd=target,
                       check=True, stdout=sys.stderr)

    modules = made(os.path.join(folder, "llama"), install)
    found = glob.glob(os.path.join(modules, "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"))
    if not found:
        raise SystemExit(f"compare: {PACKAGE} has no library for this system in {modules}")
    return found[0]


def run(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"compare: {' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout)


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else platform.processor()


def thread_counts(text):
    counts = list(dict.fromkeys(int(n) for n in text.split(",")))
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def ratio(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"), help="the build directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=thread_counts, default=f"1,{os.cpu_count()}", help="thread counts, separated by commas")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--isa", help="Pocket's instruction set (default: the best)")
    parser.add_argument("--library", help="folder with llama.cpp's libraries (default: installed by npm)")
    parser.add_argument("--no-peer", action="store_true", help="Pocket alone")
    parser.add_argument("--out", help="write every run there, as JSON")
    o = parser.parse_args()

    pocket = os.path.join(o.build, "tools", "pocket")
    if not os.path.exists(pocket):
        raise SystemExit(f"compare: there is no {pocket}; build it: meson setup build && ninja -C build")
    folder = os.path.join(o.build, "peer")
    os.makedirs(folder, exist_ok=True)
    model = made(os.path.join(folder, "pocket"),
                 lambda path: subprocess.run([pocket, "synthesize", "--force", "--out", path], check=True, stdout=sys.stderr))
    sizes = ["--prompt", str(o.prompt), "--depth", str(o.depth), "--generate", str(o.generate), "--repeat", "1"]

    def engine(activations):
        isa = ["--isa", o.isa] if o.isa else []
        return lambda threads: run([pocket, "bench", "--json", "--model", model, "--threads", str(threads),
                                    "--activations", activations] + isa + sizes)

    engines = {"pocket a16": engine("a16"), "pocket a8": engine("a8")}
    if not o.no_peer:
        library = os.path.abspath(o.library) if o.library else peer_library(folder)
        gguf = made(os.path.join(folder, "q4_0.gguf"), lambda path: synthetic_gguf.write(path, "q4_0"))
        engines["llama.cpp q4_0"] = lambda threads: run(
            [sys.executable, os.path.join(HERE, "llama_cpp.py"), "--library", library, "--model", gguf, "--threads",
             str(threads)] + sizes)

    names = list(engines)
    phases = [phase for phase, tokens in (("prefill", o.prompt), ("decode", o.generate)) if tokens > 0]
    runs = []
    for count in o.threads:
        for r in range(o.rounds):
            for i in range(len(names)):
                name = names[(r + i) % len(names)]
                say(f"{count} thread{'s' if count > 1 else ''}, round {r + 1} of {o.rounds}: {name}")
                result = engines[name](count)
                for phase in phases:
                    value = result[phase]
                    result[phase] = (value["runs"] if isinstance(value, dict) else value)[0]
                result["model"] = os.path.basename(result["model"])
                runs.append({"engine": name, "threads": count, "round": r, **result})

    if o.out:
        report = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "cores": os.cpu_count(), "prompt": o.prompt,
                  "depth": o.depth, "generate": o.generate, "runs": runs}
        with open(o.out + ".part", "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
            f.write("\n")
        os.rename(o.out + ".part", o.out)

    def values(name, threads, key):
        return [x[key] for x in runs if x["engine"] == name and x["threads"] == threads]

    peers = [n for n in names if n.startswith("llama")]
    print("| threads | | engine | tokens/s | ÷ llama.cpp | share of the wall |")
    print("|---|---|---|---|---|---|")
    for count in o.threads:
        for phase in phases:
            label = f"prefill {o.prompt}" if phase == "prefill" else f"decode at depth {o.depth}"
            for name in names:
                mine = values(name, count, phase)
                against = ""
                if peers and name not in peers:
                    against = ratio([a / b for a, b in zip(mine, values(peers[0], count, phase))])
                wall = ratio(values(name, count, "wall_share")) if phase == "decode" and name not in peers else ""
                print(f"| {count} | {label} | {name} | {spread(mine)} | {against} | {wall} |")


if __name__ == "__main__":
    main()
