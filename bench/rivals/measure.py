#!/usr/bin/env python3
"""measure.py <rival> <workload> [options] -> prints ONE JSON line and appends it to results.jsonl
workloads: drain latency enqueue enqueue_noworker enqueue_bulk crash bloat
"""
import argparse, json, os, queue, signal, subprocess, sys, threading, time
import psycopg
from backends import backend, dsn
from rivals import P, RIVALS, version

now = time.monotonic_ns
OVERRIDE = {}  # --set K=V
JOBS = None  # the backend of the rival that is measured


class Proc:
    """A peer process whose stdout lines are queued with no parsing."""
    all = []

    def __init__(self, peer, argv, extra=None):
        c = RIVALS[peer]
        env = {**os.environ, **c["env"], **(extra or {}), **JOBS.env, "RUST_LOG": "off",
               "NODE_ENV": "production", "NO_LOG_SUCCESS": "1", **OVERRIDE}
        self.err = open(f"{P}/logs/{peer}.stderr", "ab")
        self.p = subprocess.Popen(c["cmd"] + [str(a) for a in argv], stdout=subprocess.PIPE, stderr=self.err,
                                  stdin=subprocess.DEVNULL, env=env, cwd=P)
        Proc.all.append(self)
        self.q = queue.Queue()
        self.t = threading.Thread(target=self._read, daemon=True)
        self.t.start()

    def _read(self):
        for line in self.p.stdout:
            self.q.put(line.decode().strip())
        self.q.put(None)

    def wait_for(self, word, timeout):
        """next line starting with `word` (others are returned in .seen); None on timeout or end"""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return None
            try:
                line = self.q.get(timeout=left)
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith(word):
                return line.split()

    def drainlines(self, grace=0.0):
        if grace:
            time.sleep(grace)
        o = []
        while True:
            try:
                l = self.q.get_nowait()
            except queue.Empty:
                return o
            if l is not None:
                o.append(l)

    def stop(self):
        """SIGTERM to this very process, SIGKILL after 10 s; returns the remaining lines"""
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(10)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        self.t.join(5)
        return self.drainlines()

    def kill(self):
        self.p.kill()
        self.p.wait()


def call(peer, argv, timeout=600, extra=None):
    """run a peer command to its end; return the JSON of its last stdout line"""
    p = Proc(peer, argv, extra)
    end = time.monotonic() + timeout
    last, ended = None, False
    while time.monotonic() < end:
        try:
            l = p.q.get(timeout=1)
        except queue.Empty:
            continue
        if l is None:
            ended = True
            break
        last = l
    if not ended:
        p.kill()
        raise RuntimeError(f"{peer} {argv}: no end within {timeout} s")
    if p.p.wait() != 0:
        raise RuntimeError(f"{peer} {argv}: exit {p.p.returncode}, see logs/{peer}.stderr")
    return json.loads(last) if last and last.startswith("{") else {}


def fresh(peer):
    """nothing is left of earlier measurements, and the rival has set itself up"""
    JOBS.empty(lambda: call(peer, ["setup"], 60))


def prefill(peer, n):
    s = call(peer, ["bulk", n, RIVALS[peer]["bulk"]])["seconds"]
    JOBS.settle()
    left = JOBS.unfinished()
    assert left == n, f"prefill made {left} of {n}"
    return s


def pct(v, q):
    v = sorted(v)
    return v[min(len(v) - 1, int(q * len(v)))] if v else None


def wenv(peer, kind):
    return RIVALS[peer].get("wenv", {}).get(kind, {})


def drain(peer, n, conc, cap, extra=None):
    """start one worker on a prefilled queue; seconds from first handler start to nothing unfinished"""
    w = Proc(peer, ["worker", conc, n], {**wenv(peer, "drain"), **(extra or {})})
    first = done = None
    prog = (0, None)
    end = None
    try:
        hard = time.monotonic() + cap + 30
        while time.monotonic() < hard:
            try:
                l = w.q.get(timeout=0.5)
            except queue.Empty:
                l = ""
            if l is None:
                raise RuntimeError(f"worker of {peer} ended early, see logs/{peer}.stderr")
            f = l.split()
            if f and f[0] == "FIRST":
                first = int(f[1])
                hard = time.monotonic() + cap
            elif f and f[0] == "PROG":
                prog = (int(f[1]), int(f[2]))
            elif f and f[0] == "HANDLED":
                done = int(f[2])
                break
        if done:
            while time.monotonic() < hard + 30:
                if JOBS.unfinished() == 0:
                    end = now()
                    break
                time.sleep(0.002)
        left = JOBS.unfinished()
        cut = now()
    finally:
        tail = w.stop()
        JOBS.close()
    st = [l.split() for l in tail if l.startswith("STATS")]
    total, uniq, dups = (int(x) for x in st[-1][1:4]) if st else (None, None, None)
    r = {"n": n, "concurrency": conc, "executions": total, "duplicate_executions": dups}
    if end:
        s = (end - first) / 1e9
        r |= {"seconds": round(s, 3), "per_s": round(n / s, 1), "handlers_only_s": round((done - first) / 1e9, 3)}
    elif first:
        s = (cut - first) / 1e9
        r |= {"seconds": round(s, 3), "per_s": round((n - left) / s, 1), "cut_off": f"cut after {s:.0f} s with {left} of {n} left"}
    else:
        r |= {"seconds": None, "per_s": 0, "cut_off": "no job started"}
    return r


def start_idle(peer, conc, extra=None):
    w = Proc(peer, ["worker", conc, 0], {**wenv(peer, "lat"), **(extra or {})})
    if not w.wait_for("READY", 30):
        w.stop()
        raise RuntimeError(f"worker of {peer} not ready, see logs/{peer}.stderr")
    time.sleep(1.5)
    return w


def lats(lines):
    return [(int(a), (int(b) - int(a)) / 1e6) for a, b in (l.split()[1:3] for l in lines if l.startswith("LAT"))]


def w_drain(peer, o):
    c = RIVALS[peer]
    n, conc, cap = o.n or c["n"], c["conc"]["drain"] if o.conc is None else o.conc, o.cap or c["cap"]
    fresh(peer)
    pre = prefill(peer, n)
    r = drain(peer, n, conc, cap)
    return r | {"prefill_s": round(pre, 3)}


def w_latency(peer, o):
    c = RIVALS[peer]
    conc = c["conc"]["lat"] if o.conc is None else o.conc
    fresh(peer)
    w = start_idle(peer, conc)
    try:
        n = o.n or 500
        pr = call(peer, ["rate", 50, n / 50, 1], 120)
        t_end = time.monotonic() + 30
        lines = []
        while len(lines) < n and time.monotonic() < t_end:
            lines += [l for l in w.drainlines(0.1) if l.startswith("LAT")]
        alive = w.p.poll() is None
        stuck = JOBS.unfinished()
    finally:
        lines += w.stop()
    allrows = lats(lines)
    firsts = {}
    for t, x in allrows:  # a job run twice counts with its first start
        firsts[t] = min(x, firsts.get(t, x))
    l = list(firsts.values())
    r = {"n": n, "seconds": round(pr["seconds"], 3), "per_s": round(len(l) / pr["seconds"], 1), "concurrency": conc,
         "p50_ms": round(pct(l, .5), 3) if l else None, "p95_ms": round(pct(l, .95), 3) if l else None,
         "p99_ms": round(pct(l, .99), 3) if l else None, "max_ms": round(max(l), 3) if l else None}
    if len(l) < n:
        r["cut_off"] = (f"only {len(l)} of {n} jobs started within 30 s after the last enqueue; percentiles are of those; "
                        f"{stuck} unfinished, worker process {'alive' if alive else 'DEAD'}")
    r["duplicate_executions"] = len(allrows) - len(l)
    return r


def w_enqueue(peer, o, worker=True):
    c = RIVALS[peer]
    n = o.n or 20000
    fresh(peer)
    w = start_idle(peer, c["conc"]["lat"]) if worker else None
    try:
        s = call(peer, ["single", n, 4])["seconds"]
        left = JOBS.unfinished()
    finally:
        if w:
            w.stop()
    return {"n": n, "seconds": round(s, 3), "per_s": round(n / s, 1),
            "unfinished_at_end": left, "connections": 4, "worker": "1 listening, runs the jobs as they come" if worker else "none"}


def w_enqueue_bulk(peer, o):
    c = RIVALS[peer]
    n = o.n or 100000
    fresh(peer)
    s = call(peer, ["bulk", n, o.batch or c["bulk"]])["seconds"]
    left = JOBS.unfinished()
    assert left == n, (left, n)
    return {"n": n, "seconds": round(s, 3), "per_s": round(n / s, 1), "rows_per_call": o.batch or c["bulk"], "connections": 1, "worker": "none"}


def w_crash(peer, o):
    c = RIVALS[peer]
    fresh(peer)
    wait = o.wait or 90
    a = start_idle(peer, c["conc"]["lat"])
    b = None
    try:
        call(peer, ["sleepjob", 60000], 60)
        st = a.wait_for("START", 40)
        if not st:
            raise RuntimeError("job never started on worker A")
        b = start_idle(peer, c["conc"]["lat"])
        left = 2.0 - (now() - int(st[1])) / 1e9
        if left > 0:
            time.sleep(left)
        ran = (now() - int(st[1])) / 1e9
        t_kill = now()
        a.kill()
        st2 = b.wait_for("START", wait)
        secs = (int(st2[1]) - t_kill) / 1e9 if st2 else None
    finally:
        if a.p.poll() is None:
            a.kill()
        if b:
            b.stop()
    return {"n": 1, "seconds": round(secs, 2) if secs is not None else None, "per_s": None,
            "result": f">{wait} s" if secs is None else f"{secs:.{1 if secs >= 1 else 2}f} s", "documented_rescue": c["rescue"],
            "job_ran_before_kill_s": round(ran, 2)}


def w_bloat(peer, o):
    """A(20k) on a fresh db; fresh db + held snapshot + 500/s for 120 s; A(20k) with the snapshot still held"""
    c = RIVALS[peer]
    if "db" not in c:
        return {"n": 0, "cut_off": "old snapshots are a matter of Postgres"}
    conc, lconc = c["conc"]["drain"], c["conc"]["lat"]
    n, per_s, secs = o.n or 20000, o.rate or 500, o.secs or 120
    cap = min(c["cap"], 60)
    fresh(peer)
    prefill(peer, n)
    before = drain(peer, n, conc, cap)
    fresh(peer)
    held = None
    if not o.control:
        held = psycopg.connect(dsn(c["db"]))
        held.execute("set transaction isolation level repeatable read")
        held.execute("select 1")
    w = start_idle(peer, lconc)
    lines = []
    try:
        prod = {}
        th = threading.Thread(target=lambda: prod.update(call(peer, ["rate", per_s, secs, 4], secs + 60)))
        t0 = now()
        th.start()
        while th.is_alive():
            time.sleep(0.2)
            lines += w.drainlines()
        backlog = left = JOBS.unfinished()
        t_end = time.monotonic() + 30
        while left and time.monotonic() < t_end:
            time.sleep(0.5)
            lines += w.drainlines()
            left = JOBS.unfinished()
    finally:
        lines += w.stop()
    la = lats(lines)
    t_first = min((t for t, _ in la), default=0)
    head = [x for t, x in la if t - t_first < 10e9]
    tail = [x for t, x in la if t - t_first > (secs - 10) * 1e9]
    with psycopg.connect(dsn(c["db"]), autocommit=True) as a:
        a.execute("select pg_stat_force_next_flush()")
        time.sleep(1)
        dead = a.execute("select coalesce(sum(n_dead_tup),0)::bigint, coalesce(sum(pg_total_relation_size(relid)),0)::bigint from pg_stat_user_tables").fetchone()
        xmin = a.execute("select count(*) from pg_stat_activity where datname=current_database() and backend_xmin is not null and state='idle in transaction'").fetchone()[0]
        # leftover of peers that could not keep up: cleared, so that the second drain is the same 20k as the first
        if left:
            for t in ("graphile_worker._private_jobs", "pgboss.job", "procrastinate_jobs", "pgqueuer", "apalis.jobs", "fang_tasks", "underway.task"):
                if a.execute("select to_regclass(%s) is not null", (t,)).fetchone()[0]:
                    a.execute(f"delete from {t}")
            if a.execute("select to_regclass('mq_msgs') is not null").fetchone()[0]:
                a.execute("delete from mq_msgs where id <> uuid_nil()")
            if a.execute("select to_regclass('awa.jobs') is not null").fetchone()[0]:
                # set-based, as awa.jobs deletes row by row (5 ms each) and does not show jobs in a stopped worker's hands (lease_claims)
                a.execute("delete from awa.deferred_jobs")
                a.execute("""with h as materialized (select queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) as c from awa.queue_claim_heads)
                    insert into awa.ready_tombstones (ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id)
                    select ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
                    from h join awa.ready_entries r using (queue, priority, enqueue_shard) where r.lane_seq >= h.c on conflict do nothing""")
                a.execute("""with x as (insert into awa.lease_claim_closures (claim_slot, job_id, run_lease, outcome, closed_at)
                    select claim_slot, job_id, run_lease, 'cancelled', now() from awa.lease_claims c
                    where not exists (select 1 from awa.lease_claim_closures o where (o.claim_slot, o.job_id, o.run_lease) = (c.claim_slot, c.job_id, c.run_lease))
                      and not exists (select 1 from awa.lease_claim_closure_batches b where b.claim_slot = c.claim_slot and b.receipt_ranges @> c.receipt_id)
                    returning claim_slot, job_id, run_lease)
                    update awa.lease_claims c set closed_at = now() from x where (c.claim_slot, c.job_id, c.run_lease) = (x.claim_slot, x.job_id, x.run_lease)""")
    prefill(peer, n)
    after = drain(peer, n, conc, cap)
    if held:
        held.rollback()
        held.close()
    rnd = lambda v: round(v, 2) if v is not None else None
    return {"n": n, "seconds": after["seconds"], "per_s": after["per_s"], "per_s_before": before["per_s"],
            "ratio_after_before": round(after["per_s"] / before["per_s"], 3) if before["per_s"] else None,
            "before_cut": before.get("cut_off"), "cut_off": after.get("cut_off"),
            "snapshot_held": bool(held) and xmin > 0, "produced": prod.get("produced"), "produced_per_s": rnd(prod["produced"] / prod["seconds"]) if prod else None,
            "started_during_steady": len(la), "backlog_at_end_of_production": backlog, "backlog_30s_later": left,
            "steady_first10s_p50_ms": rnd(pct(head, .5)), "steady_first10s_p99_ms": rnd(pct(head, .99)),
            "steady_last10s_p50_ms": rnd(pct(tail, .5)), "steady_last10s_p99_ms": rnd(pct(tail, .99)),
            "dead_tuples": dead[0], "bytes_all_tables": dead[1], "concurrency": conc}


W = {"drain": w_drain, "latency": w_latency, "enqueue": w_enqueue,
     "enqueue_noworker": lambda p, o: w_enqueue(p, o, False), "enqueue_bulk": w_enqueue_bulk, "crash": w_crash, "bloat": w_bloat}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("peer", choices=list(RIVALS))
    ap.add_argument("workload", choices=list(W))
    for a in ("n", "conc", "cap", "batch", "wait", "rate", "secs"):
        ap.add_argument(f"--{a}", type=int)
    ap.add_argument("--set", action="append", default=[], metavar="K=V", help="override a peer's env setting")
    ap.add_argument("--control", action="store_true", help="bloat without the held snapshot")
    ap.add_argument("--no-save", action="store_true")
    ap.add_argument("--label", help="appended to the workload name (for tuning runs)")
    o = ap.parse_args()
    OVERRIDE.update(x.split("=", 1) for x in o.set)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load0 = os.getloadavg()[0]
    global JOBS
    JOBS = backend(RIVALS[o.peer])
    versions = ", ".join(filter(None, [version(o.peer), JOBS.version()]))
    base = {"peer": o.peer, "version": versions, "workload": o.workload + (f"_{o.label}" if o.label else "") + ("_control" if o.control else ""),
            "n": None, "seconds": None, "per_s": None, "p50_ms": None, "p95_ms": None, "p99_ms": None}
    try:
        r = W[o.workload](o.peer, o)
        notes = {k: v for k, v in r.items() if k not in base and v is not None}
        r = {k: r.get(k, base[k]) for k in base}
    except Exception as e:
        r, notes = dict(base), {"error": f"{type(e).__name__}: {e}"}
    finally:
        for left in Proc.all:
            if left.p.poll() is None:
                left.kill()
        JOBS.close()
    notes["settings"] = RIVALS[o.peer]["settings"]
    notes["env"] = {k: v for k, v in {**RIVALS[o.peer]["env"], **wenv(o.peer, "drain" if o.workload in ("drain", "bloat") else "lat"), **OVERRIDE}.items()}
    notes["load1_before"] = round(load0, 2)
    notes["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    r["notes"] = notes
    line = json.dumps(r)
    print(line, flush=True)
    if not o.no_save:
        with open(os.environ.get("RESULTS", f"{P}/results.jsonl"), "a") as f:
            f.write(line + "\n")
    sys.exit(1 if "error" in notes else 0)


main()
