#!/usr/bin/env python3
"""table.py [results.jsonl] -> markdown tables; repetitions are shown as median (min–max)"""
import json
import statistics as st
import sys
rows = [json.loads(l) for l in open(sys.argv[1] if len(sys.argv) > 1 else "results.jsonl")]
peers, by = [], {}
for r in rows:
    if r["peer"] not in peers: peers.append(r["peer"])
    by.setdefault((r["peer"], r["workload"]), []).append(r)
fmt = lambda x: "–" if x is None else f"{x:,.0f}" if abs(x) >= 100 else f"{x:,.1f}"


def med(p, w, k="per_s", note=False):
    v = [(r["notes"].get(k) if note else r[k]) for r in by.get((p, w), [])]
    v = [x for x in v if x is not None]
    if not v: return "–"
    return fmt(v[0]) if len(v) == 1 else f"{fmt(st.median(v))} ({fmt(min(v))}–{fmt(max(v))})"


def flag(p, w):
    n = [r["notes"] for r in by.get((p, w), [])]
    f = "".join("!" if x.get("error") else "*" if x.get("cut_off") else "" for x in n)
    return f[:3]


print("## floor\n\n| figure | per s | p50 ms | p99 ms |\n|---|---|---|---|")
for (p, w), rs in by.items():
    if p == "floor": print(f"| {w} | {med(p, w)} | {med(p, w, 'p50_ms')} | {med(p, w, 'p99_ms')} |")
peers = [p for p in peers if p != "floor"]
print("\n## peers (* = hit the time cap, see notes; ! = error)\n\n| peer | version | A drain jobs/s | n | conc | dups | B p50 ms | B p95 | B p99 | C enqueue/s (worker) | C no worker | C bulk/s | D crash |\n|" + "---|" * 13)
for p in peers:
    g = lambda w: by.get((p, w), [{}])[-1]
    n = lambda w: g(w).get("notes", {})
    v = next((r["version"] for r in rows if r["peer"] == p), "")
    print(f"| {p} | {v} | {med(p,'drain')}{flag(p,'drain')} | {fmt(g('drain').get('n'))} | {n('drain').get('concurrency','–')} | {n('drain').get('duplicate_executions','–')} | "
          f"{med(p,'latency','p50_ms')}{flag(p,'latency')} | {med(p,'latency','p95_ms')} | {med(p,'latency','p99_ms')} | {med(p,'enqueue')}{flag(p,'enqueue')} | {med(p,'enqueue_noworker')} | {med(p,'enqueue_bulk')} | {n('crash').get('result', n('crash').get('error','–'))} |")
print("\n## E bloat (held snapshot)\n\n| peer | 20k drain before /s | after /s | ratio | produced/s | backlog at end | p50 first→last 10 s ms | p99 first→last | dead tuples |\n|" + "---|" * 9)
for p in peers:
    for r in by.get((p, "bloat"), []):
        n = r["notes"]
        if r["n"] == 0: continue
        if n.get("error"):
            print(f"| {p} | ! {n['error']} |"); continue
        print(f"| {p} | {fmt(n.get('per_s_before'))}{'*' if n.get('before_cut') else ''} | {fmt(r['per_s'])}{'*' if n.get('cut_off') else ''} | {n.get('ratio_after_before')} | {n.get('produced_per_s')} | {n.get('backlog_at_end_of_production')} | "
              f"{n.get('steady_first10s_p50_ms')} → {n.get('steady_last10s_p50_ms')} | {n.get('steady_first10s_p99_ms')} → {n.get('steady_last10s_p99_ms')} | {n.get('dead_tuples')} |")
loads = [r["notes"].get("load1_before") for r in rows if r["notes"].get("load1_before") is not None]
if loads: print(f"\n1-minute load before runs: median {st.median(loads):.1f}, max {max(loads):.1f} (other work shared the two cores)")
