#!/usr/bin/env python3
"""LISTEN/NOTIFY latency: from just before the (committed) NOTIFY to its receipt on another connection. One thread,
psycopg 3, unix socket; receipt cannot precede the sender's commit, so the order of the two reads does not matter."""
import json
import os
import sys
import time
import psycopg
HOME = os.path.dirname(os.path.abspath(__file__))
DSN = f"host={HOME}/socket port=54329 user=postgres dbname=floor"
n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
a, b = psycopg.connect(DSN, autocommit=True), psycopg.connect(DSN, autocommit=True)
b.execute("listen rtt")
v = []
for i in range(n + 100):
    t0 = time.monotonic_ns()
    a.execute("select pg_notify('rtt', %s)", (str(i),))
    for x in b.notifies(timeout=5, stop_after=1):
        assert x.payload == str(i)
    if i >= 100:
        v.append((time.monotonic_ns() - t0) / 1e6)
    time.sleep(0.002)
v.sort()
q = lambda p: round(v[min(len(v) - 1, int(p * len(v)))], 3)
print(json.dumps({"p50_ms": q(.5), "p95_ms": q(.95), "p99_ms": q(.99), "n": n}))
