#!/usr/bin/env python3
"""Draws the roofline of every product kernel, as SVG, from bench_kernels' output.

  build/bench/bench_kernels --benchmark_filter='matmul/.*/cold|peak|wall' --benchmark_out=kernels.json \\
      --benchmark_out_format=json
  bench/roofline.py kernels.json --out roofline.svg

One panel for each instruction set and activation form. Across: multiply-adds for each byte of packed weights, which grows
with the number of tokens. Up: 10^9 multiply-adds a second. The roof is the smaller of the wall (reading the weights) and
the peak of the dot instruction, both measured in the same run; A16 takes two dot products, hence half of the peak. A table
of the points, with their part of the roof, goes to the standard output. Needs matplotlib (Debian: python3-matplotlib).
"""
import argparse
import json
import statistics
import sys

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("roofline.py: matplotlib is missing (Debian: apt-get install python3-matplotlib)")


def read(path):
    """{name: {counter: median over repetitions}}"""
    with open(path, encoding="utf-8") as f:
        entries = json.load(f)["benchmarks"]
    rows = {}
    for e in entries:
        if e.get("run_type") == "aggregate" or e.get("error_occurred"):
            continue
        rows.setdefault(e["name"].split("/repeats:")[0], []).append(e)
    return {name: {key: statistics.median(e[key] for e in group) for key in ("GB", "GMAC", "Gweights") if key in group[0]}
            for name, group in rows.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("--out", default="roofline.svg")
    parser.add_argument("--format", default="w4_g64", help="weight format to draw")
    o = parser.parse_args()
    rows = read(o.json)
    if "wall" not in rows:
        sys.exit("roofline.py: the file holds no 'wall': run bench_kernels with a filter that includes it")
    wall = rows["wall"]["GB"]
    peaks = {name.split("/")[1]: row["GMAC"] for name, row in rows.items() if name.startswith("peak/")}

    panels = {}
    for name, row in rows.items():
        parts = name.split("/")
        if parts[0] != "matmul" or parts[6] != "cold" or parts[2] != o.format or parts[1] not in peaks:
            continue
        isa, form, shape, tokens = parts[1], parts[3], parts[4], int(parts[5][2:])
        weights_per_byte = row["Gweights"] / row["GB"]
        roof = min(wall * weights_per_byte * tokens, peaks[isa] / (2 if form == "a16" else 1))
        panels.setdefault((isa, form), []).append((shape, tokens, weights_per_byte * tokens, row["GMAC"], roof))
    if not panels:
        sys.exit(f"roofline.py: the file holds no cold products of {o.format} beside a peak")

    matplotlib.rcParams["svg.hashsalt"] = "pocket"  # the same file from the same numbers
    columns = len({form for _, form in panels})
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(6 * columns, 4.2 * lines), squeeze=False, sharex=True, sharey=True)
    markers = dict(zip(sorted({p[0] for points in panels.values() for p in points}), "os^Dv<>"))
    print("| instruction set | activations | matrix | tokens | GMAC/s | of the roof |\n|---|---|---|---|---|---|")
    for axis, ((isa, form), points) in zip(axes.flat, sorted(panels.items())):
        xs = sorted(p[2] for p in points)
        top = peaks[isa] / (2 if form == "a16" else 1)
        line = sorted({xs[0] / 1.5, top / wall, xs[-1] * 1.5})
        axis.plot(line, [min(wall * x, top) for x in line], color="black", linewidth=1)
        for shape, marker in markers.items():
            mine = [p for p in points if p[0] == shape]
            axis.plot([p[2] for p in mine], [p[3] for p in mine], marker, markersize=5, label=shape)
        axis.set(xscale="log", yscale="log", title=f"{isa}, {form}", xlabel="multiply-adds per byte of weights",
                 ylabel="10⁹ multiply-adds per second")
        axis.text(line[0], wall * line[0], f" {wall:.1f} GB/s", va="bottom", fontsize=8)
        axis.text(line[-1], top, f"{top:.0f} ", va="bottom", ha="right", fontsize=8)
        axis.grid(True, which="both", linewidth=0.3)
        axis.legend(fontsize=7, loc="lower right")
        for shape, tokens, _, rate, roof in sorted(points, key=lambda p: (p[0], p[1])):
            print(f"| {isa} | {form} | {shape} | {tokens} | {rate:.1f} | {rate / roof:.2f} |")
    for axis in axes.flat[len(panels):]:
        axis.remove()
    figure.tight_layout()
    figure.savefig(o.out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
