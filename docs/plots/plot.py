#!/usr/bin/env python3
"""Draw the plots of docs/performance.md from JSON lines. Needs nothing but Python 3.

    bugle bench all --json > bench.jsonl
    docs/plots/plot.py bench.jsonl [results.jsonl of bench/rivals] [--into docs/plots]

Writes drain.svg (by peer), enqueue.svg (by clients, with and without a bell), pinned.svg (throughput while an old snapshot
is held open) and pickup.svg (histogram), each if its lines are there.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
COLORS = ["#2b6cb0", "#dd6b20", "#718096", "#c53030", "#38a169", "#805ad5"]


class Chart:
    """A frame with a value axis, and shapes in it."""

    def __init__(self, title, most, unit, left=LEFT):
        self.most, self.left = most * 1.08 or 1, left
        self.shapes = [f'<text x="{WIDTH / 2}" y="24" class="title">{escape(title)}</text>']
        self.unit = unit

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.most

    def grid(self):
        step = next(s for e in range(-3, 9) for s in (10**e, 2 * 10**e, 5 * 10**e) if self.most / s <= 6)
        for n in range(int(self.most / step) + 1):
            y = self.y(n * step)
            self.shapes.append(f'<line x1="{self.left}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            self.text(self.left - 6, y + 4, f"{n * step:,.10g}", "end")
        self.text(self.left - 6, TOP - 12, self.unit, "end")

    def text(self, x, y, text, anchor="middle"):
        self.shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def bar(self, x, width, value, color):
        y = self.y(value)
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" fill="{color}"/>')

    def line(self, points, color):
        path = " ".join(f"{x:.1f},{self.y(value):.1f}" for x, value in points)
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')

    def legend(self, names):
        x = self.left
        for name, color in zip(names, COLORS):
            self.shapes.append(f'<rect x="{x}" y="{TOP - 18}" width="10" height="10" fill="{color}"/>')
            self.text(x + 14, TOP - 9, name, "start")
            x += 30 + 7 * len(name)

    def write(self, path):
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
            "<style>.title{font-size:15px;text-anchor:middle;font-weight:bold}.grid{stroke:#e2e8f0}</style>\n"
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(self.shapes) + "\n</svg>\n")
        print(path)


def drain(lines, into):
    """One bar for each peer: the median of its runs."""
    runs = defaultdict(list)
    for line in lines:
        if line.get("workload") == "drain" and line.get("per_s"):
            runs[line["peer"]].append(line["per_s"])
    if not runs:
        return
    rates = sorted(((statistics.median(r), peer) for peer, r in runs.items()), reverse=True)
    most, left = rates[0][0] * 1.15, 210
    height = TOP + 30 * len(rates) + 20
    chart = Chart("Drain: jobs per second, one worker process", most, "", left)
    for place, (rate, peer) in enumerate(rates):
        y = TOP + 30 * place
        width = (WIDTH - RIGHT - left) * rate / most
        color = COLORS[0] if peer.startswith("bugle") else COLORS[2]
        chart.shapes.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" fill="{color}"/>')
        chart.text(left - 8, y + 14, peer, "end")
        chart.text(left + width + 5, y + 14, f"{rate:,.0f}", "start")
    global HEIGHT
    HEIGHT, before = height, HEIGHT
    chart.write(into / "drain.svg")
    HEIGHT = before


def enqueue(lines, into):
    """Groups of bars: clients; in each the four ways."""
    ways = ["no triggers", "no worker", "with worker", "NOTIFY per job"]
    rates = {}
    for line in lines:
        named = re.fullmatch(r"(\d+) clients, (.+)", line.get("what", ""))
        if line.get("bench") == "enqueue" and named and named[2] in ways:
            rates[int(named[1]), named[2]] = line["per_s"]
    clients = sorted({c for c, _ in rates})
    if not clients:
        return
    chart = Chart("Enqueue: commits per second, one job each", max(rates.values()), "/s")
    chart.grid()
    chart.legend(ways)
    group = (WIDTH - LEFT - RIGHT) / len(clients)
    for place, count in enumerate(clients):
        for turn, way in enumerate(ways):
            x = LEFT + group * place + group * (0.1 + 0.2 * turn)
            chart.bar(x, group * 0.18, rates.get((count, way), 0), COLORS[turn])
        chart.text(LEFT + group * (place + 0.5), HEIGHT - BOTTOM + 20, f"{count} clients")
    chart.write(into / "enqueue.svg")


def pinned(lines, into):
    """Throughput by chunk, with and without the snapshot."""
    series = {
        line["what"].split(":")[0]: line["notes"]["chunks"]
        for line in lines
        if line.get("bench") == "pinned" and line["what"].endswith("throughput")
    }
    if not series:
        return
    chart = Chart("Throughput while an old snapshot is held open", max(max(c) for c in series.values()), "jobs/s")
    chart.grid()
    chart.legend(list(series))
    for (_, chunks), color in zip(series.items(), COLORS):
        step = (WIDTH - LEFT - RIGHT) / max(len(chunks) - 1, 1)
        chart.line([(LEFT + step * n, rate) for n, rate in enumerate(chunks)], color)
    chart.text(WIDTH / 2, HEIGHT - BOTTOM + 24, "jobs that went through before: from none to all")
    chart.write(into / "pinned.svg")


def pickup(lines, into):
    """How many jobs started within which millisecond."""
    series = {
        line["what"].split(":")[0]: line["notes"]["histogram"]
        for line in lines
        if line.get("bench") == "pickup" and "histogram" in line.get("notes", {})
    }
    if not series:
        return
    shown = 20
    counts = {who: h[: shown - 1] + [sum(h[shown - 1 :])] for who, h in series.items()}
    chart = Chart("Pickup: from the INSERT call to the executor's start", max(max(c) for c in counts.values()), "jobs")
    chart.grid()
    chart.legend(list(counts))
    step = (WIDTH - LEFT - RIGHT) / shown
    for turn, (_, histogram) in enumerate(counts.items()):
        width = step * 0.8 / len(counts)
        for n, count in enumerate(histogram):
            chart.bar(LEFT + step * (n + 0.1) + width * turn, width, count, COLORS[turn])
    for n in range(shown):
        chart.text(LEFT + step * (n + 0.5), HEIGHT - BOTTOM + 16, f"{n}" if n < shown - 1 else f"≥{n}")
    chart.text(WIDTH / 2, HEIGHT - BOTTOM + 36, "milliseconds")
    chart.write(into / "pickup.svg")


def main(arguments):
    into = Path(__file__).parent
    if "--into" in arguments:
        place = arguments.index("--into")
        into = Path(arguments[place + 1])
        arguments = arguments[:place] + arguments[place + 2 :]
    if not arguments:
        sys.exit(__doc__)
    lines = [json.loads(line) for name in arguments for line in Path(name).read_text().splitlines() if line.startswith("{")]
    for plot in (drain, enqueue, pinned, pickup):
        plot(lines, into)


main(sys.argv[1:])
