"""The rivals, and Bugle. One entry = one library in one configuration.

cmd        how its program is started (argv follows: see node/graphile.mjs)
env        settings common to all workloads of this entry
on         server that holds its jobs, as ./server calls it; postgres if not given. How jobs are counted there, and how the
           server is emptied, is in backends.py. With postgres:
  db         database (one per library; two configurations of a library use two databases)
  remaining  SQL -> number of jobs not yet finished AND acknowledged
  analyze    False if its tables are not to be analyzed before a drain
conc       {'drain': best concurrency for A/E, 'lat': concurrency for B/C/D/E steady}
wenv       extra env per workload for the worker ('drain' or 'lat')
n          jobs in workload A;  cap = seconds after which A is cut off (rate then = handled/elapsed)
bulk       rows per bulk call
rescue     documented default time after which a crashed worker's job runs again
"""
import json
import os
import subprocess
import sys

P = os.path.dirname(os.path.abspath(__file__))
NODE = [f"{P}/node/node_modules/node/bin/node"]
PY = [f"{P}/py/venv/bin/python"]
RS = lambda n: [f"{P}/target/release/bench-{n}"]
GW_REMAIN = "select count(*) from graphile_worker._private_jobs"
# awa's jobs live in several ledgers: ready rows the claim cursor has not reached (tombstoned ones apart), claims without a closing
# receipt (a completion writes that receipt in the transaction that acknowledges it), and scheduled or retryable jobs.
AWA_REMAIN = """
with h as materialized (select queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) as c from awa.queue_claim_heads)
select ((select count(*) from h join awa.ready_entries r using (queue, priority, enqueue_shard) where r.lane_seq >= h.c
           and not exists (select 1 from awa.ready_tombstones t where (t.queue, t.priority, t.enqueue_shard, t.lane_seq, t.ready_slot, t.ready_generation)
                           = (r.queue, r.priority, r.enqueue_shard, r.lane_seq, r.ready_slot, r.ready_generation)))
      + (select coalesce(sum(claimed_count), 0) from awa.lease_claim_batches) + (select count(*) from awa.lease_claims)
      - (select coalesce(sum(closed_count), 0) from awa.lease_claim_closure_batches) - (select count(*) from awa.lease_claim_closures)
      + (select count(*) from awa.deferred_jobs))::bigint"""

RIVALS = {
    # BUGLE is the release binary to measure; `bugle bench peer` speaks this harness' words
    "bugle": dict(
        cmd=[os.environ.get("BUGLE", "bugle"), "bench", "peer"], env={}, db="bugle",
        remaining="select count(*) from bugle.jobs_live",
        conc={"drain": 2000, "lat": 10}, n=200000, cap=120, bulk=20000,
        settings="history kept; drain 2,000 slots, otherwise 10",
        rescue="1 to 3 s (proof of life is an advisory lock)"),
    "bugle-keep-none": dict(
        cmd=[os.environ.get("BUGLE", "bugle"), "bench", "peer"], env={"KEEP_NONE": "1"}, db="bugle_none",
        remaining="select count(*) from bugle.jobs_live",
        conc={"drain": 2000, "lat": 10}, n=200000, cap=120, bulk=20000,
        settings="completed jobs not kept; drain 2,000 slots, otherwise 10",
        rescue="1 to 3 s (proof of life is an advisory lock)"),
    "bugle-python": dict(
        cmd=PY + [f"{P}/py/bugle_peer.py"], env={}, db="bugle_python",
        remaining="select count(*) from bugle.jobs_live",
        conc={"drain": 2000, "lat": 10}, n=100000, cap=120, bulk=20000,
        settings="one host process with the package bugle-jobs, async functions; history kept; drain 2,000 slots, otherwise 10",
        rescue="1 to 3 s (proof of life is an advisory lock)"),
    "bugle-node": dict(
        cmd=NODE + [f"{P}/node/bugle.mjs"], env={}, db="bugle_node",
        remaining="select count(*) from bugle.jobs_live",
        conc={"drain": 2000, "lat": 10}, n=100000, cap=120, bulk=20000,
        settings="one host process with the package bugle-jobs; history kept; drain 2,000 slots, otherwise 10",
        rescue="1 to 3 s (proof of life is an advisory lock)"),
    "graphile-worker-default": dict(
        cmd=NODE + [f"{P}/node/graphile.mjs"], env={"PROFILE": "default"}, db="gw_default",
        remaining=GW_REMAIN, conc={"drain": 10, "lat": 10}, n=20000, cap=120, bulk=20000,
        settings="default: no localQueue, no completion batching; concurrentJobs as given, maxPoolSize=conc+2, Node 22",
        rescue="jobs stay locked 4 h (sweep every 8-10 min)"),
    "graphile-worker-fast": dict(
        cmd=NODE + [f"{P}/node/graphile.mjs"], env={"PROFILE": "fast"}, db="gw_fast",
        remaining=GW_REMAIN, conc={"drain": 24, "lat": 10}, n=100000, cap=120, bulk=20000,
        settings="localQueue.size=500, completeJobBatchDelay=0, failJobBatchDelay=0 (docs/performance), maxPoolSize=conc+2, Node 22",
        rescue="jobs stay locked 4 h (sweep every 8-10 min)"),
    "pgboss-default": dict(
        cmd=NODE + [f"{P}/node/pgboss.mjs"], env={"PROFILE": "default"}, db="pgboss_default",
        remaining="select count(*) from pgboss.job where name='bench' and state < 'completed'",
        conc={"drain": 10, "lat": 10}, n=20000, cap=30, bulk=20000,
        settings="default: batchSize=1, poll every 2 s, no LISTEN/NOTIFY; localConcurrency as given, Node 22",
        rescue="expireInSeconds 15 min (checked by supervise every 60 s)"),
    "pgboss-fast": dict(
        cmd=NODE + [f"{P}/node/pgboss.mjs"], env={"PROFILE": "fast"}, db="pgboss_fast",
        remaining="select count(*) from pgboss.job where name='bench' and state < 'completed'",
        conc={"drain": 4, "lat": 10}, wenv={"drain": {"PB_BATCH": "500"}, "lat": {"PB_BATCH": "10"}},
        n=100000, cap=120, bulk=20000,
        settings="queue partition+notify, useListenNotify, pollingIntervalSeconds=0.5, burstWhenBatchFull; drain localConcurrency 4 x batchSize 500, otherwise 10 x 10, Node 22",
        rescue="expireInSeconds 15 min (checked by supervise every 60 s)"),
    "procrastinate": dict(
        cmd=PY + [f"{P}/py/procrastinate_peer.py"], env={}, db="procrastinate",
        remaining="select count(*) from procrastinate_jobs where status in ('todo','doing')",
        conc={"drain": 10, "lat": 10}, n=20000, cap=120, bulk=5000, analyze=False,
        settings="PsycopgConnector (psycopg 3 binary), uvloop, listen_notify, delete_jobs=never (default)",
        rescue="never by itself: user must schedule a task calling get_stalled_jobs/retry_job"),
    "pgqueuer": dict(
        cmd=PY + [f"{P}/py/pgqueuer_peer.py"], env={}, db="pgqueuer",
        remaining="select count(*) from pgqueuer",
        conc={"drain": 0, "lat": 20}, wenv={"drain": {"PGQ_BATCH": "1000"}, "lat": {"PGQ_BATCH": "10"}},
        n=100000, cap=120, bulk=1000,
        settings="asyncpg + uvloop, one connection, LOGGED tables (durable); drain batch_size=1000 unlimited tasks; latency batch_size=10 max_concurrent_tasks=20 (library demands 2*batch)",
        rescue="heartbeat_timeout 30 s"),
    "rs-graphile_worker-default": dict(
        cmd=RS("graphile"), env={"PROFILE": "default"}, db="rsgw_default",
        remaining=GW_REMAIN, conc={"drain": 20, "lat": 10}, n=20000, cap=30, bulk=20000,
        settings="sqlx driver, no local queue, no batching, poll_interval 1 s + NOTIFY (a backlog drains at `concurrency` jobs per poll: src/runner/job_loop/direct.rs)",
        rescue="off by default (worker_recovery opt-in: 5 min threshold + 30 s delay)"),
    "rs-graphile_worker-fast": dict(
        cmd=RS("graphile"), env={"PROFILE": "fast"}, db="rsgw_fast",
        remaining=GW_REMAIN, conc={"drain": 100, "lat": 10}, n=100000, cap=120, bulk=20000,
        settings="sqlx driver, local_queue size 5000, complete/fail_job_batch_delay 5 ms (its own perf_test bench)",
        rescue="off by default (worker_recovery opt-in: 5 min threshold + 30 s delay)"),
    "rs-river-default": dict(
        cmd=RS("river"), env={"PROFILE": "default"}, db="rsriver_default",
        remaining="select count(*) from river_job where state not in ('completed','cancelled','discarded')",
        conc={"drain": 100, "lat": 10}, n=100000, cap=60, bulk=5000,
        settings="riverqueue (River for Rust), defaults: fetch cooldown 100 ms; max_workers as given",
        rescue="rescue_stuck_jobs_after 1 h"),
    "rs-river-fast": dict(
        cmd=RS("river"), env={"PROFILE": "fast"}, db="rsriver_fast",
        remaining="select count(*) from river_job where state not in ('completed','cancelled','discarded')",
        conc={"drain": 2000, "lat": 10}, n=100000, cap=60, bulk=5000,
        settings="riverqueue (River for Rust), fetch cooldown 1 ms, 2,000 workers for the drain",
        rescue="rescue_stuck_jobs_after 1 h"),
    "rs-apalis-postgres": dict(
        cmd=RS("apalis"), env={"AP_LOCK": "0"}, db="rs_apalis",
        remaining="select count(*) from apalis.jobs where status <> 'Done'",
        conc={"drain": 1000, "lat": 10}, wenv={"drain": {"AP_BATCH": "5000"}, "lat": {"AP_BATCH": "10"}},
        n=100000, cap=120, bulk=5000,
        settings="with_pubsub + poll 100 ms, lock_tasks(false) as in its example, concurrency+parallelize(tokio::spawn), batch_size 5000 (drain) / 10",
        rescue="heartbeat 30 s x 10 missed = 300 s"),
    "rs-underway": dict(
        cmd=RS("underway"), env={"UW_POLLMS": "100"}, db="rs_underway",
        remaining="select count(*) from underway.task where state in ('pending','in_progress')",
        conc={"drain": 10, "lat": 10}, n=20000, cap=120, bulk=20000,
        settings="Worker::run_every(100 ms) (default 1 min starts only one loop for a backlog), NOTIFY",
        rescue="heartbeat 30 s, then next poll/notify"),
    "rs-awa": dict(
        cmd=RS("awa"), env={}, db="rs_awa", remaining=AWA_REMAIN,
        conc={"drain": 1024, "lat": 10},
        wenv={"drain": {"AW_CLAIM": "512", "AW_DEADLINE_S": "0", "AW_POLLMS": "50", "AW_POOL": "24", "AWA_COMPLETION_BATCH_SIZE": "512",
                        "AWA_COMPLETION_FLUSH_MS": "1", "AWA_COMPLETION_SHARDS": "4"}},
        n=100000, cap=120, bulk=20000,
        settings="queue-storage engine (its default; 16/8/8 slots, rotation 1 s), one queue, one enqueue shard; drain as in its docs/benchmarking.md and "
                 "offered-rate benchmark: max_workers 1024, claim_batch_size 512, 1 claimer, no per-claim deadline (compact claim batches), poll 50 ms, "
                 "completion batches of 512 / 1 ms / 4 shards, pool 24; otherwise QueueConfig::default() (deadline 5 min, poll 200 ms + NOTIFY, "
                 "completion 512 / 1 ms / 1 shard) with max_workers 10, pool 10 (docs/deployment.md); enqueue = insert_with, bulk = QueueStorage::enqueue_params_copy",
        rescue="heartbeat_staleness 90 s, looked for every 30 s (heartbeat_rescue_interval)"),
    **{f"bullmq-{fsync}": dict(
        cmd=NODE + [f"{P}/node/bullmq.mjs"], env={}, on=f"redis-{fsync}",
        conc={"drain": 300, "lat": 10}, n=50000, cap=120, bulk=1000,
        settings=f"Redis with appendonly, appendfsync {fsync}, no RDB snapshots, Unix socket; ioredis; completed jobs not kept "
                 "(removeOnComplete); concurrency 300 for the drain (docs: 100 to 300), otherwise 10, Node 22",
        rescue="stalled jobs looked for every 30 s, after a lock of 30 s (stalledInterval, lockDuration)")
       for fsync in ("everysec", "always")},
    "rabbitmq": dict(
        cmd=NODE + [f"{P}/node/rabbitmq.mjs"], env={}, on="rabbitmq",
        conc={"drain": 300, "lat": 10}, n=100000, cap=120, bulk=20000,
        settings="one node, quorum queue, publisher confirms, manual acknowledgement of each message, raft.segment_max_entries "
                 "32768; amqplib over TCP; prefetch 300 for the drain (docs: 100 to 300), otherwise 10, Node 22",
        rescue="at once when the connection closes; 2 missed heartbeats (60 s by default) if the host is gone"),
}


def version(peer: str) -> str:
    def npm(p):
        return json.load(open(f"{P}/node/node_modules/{p}/package.json"))["version"]

    def pip(p):
        return subprocess.run(PY + ["-c", f"import importlib.metadata as m; print(m.version('{p}'))"],
                              capture_output=True, text=True).stdout.strip()

    def crate(proj, p):
        lock = open(f"{P}/rust/{proj}/Cargo.lock").read().split("[[package]]")
        for s in lock:
            if f'name = "{p}"\n' in s:
                return s.split('version = "')[1].split('"')[0]
    if peer.startswith("bugle"):
        return subprocess.run(RIVALS[peer]["cmd"][:1] + ["--version"], capture_output=True, text=True).stdout.strip()
    if peer.startswith("rs-river"): return "riverqueue " + crate("river", "riverqueue")
    if peer.startswith("graphile-worker"): return "graphile-worker " + npm("graphile-worker")
    if peer.startswith("pgboss"): return "pg-boss " + npm("pg-boss")
    if peer == "procrastinate": return "procrastinate " + pip("procrastinate")
    if peer == "pgqueuer": return "pgqueuer " + pip("pgqueuer")
    if peer.startswith("rs-graphile"): return "graphile_worker " + crate("graphile", "graphile_worker")
    if peer == "rs-apalis-postgres": return "apalis-postgres " + crate("apalis", "apalis-postgres")
    if peer == "rs-underway": return "underway " + crate("underway", "underway")
    if peer == "rs-awa": return "awa " + crate("awa", "awa")
    if peer.startswith("bullmq"): return "bullmq " + npm("bullmq")
    if peer == "rabbitmq": return "amqplib " + npm("amqplib")
    return "?"


if __name__ == "__main__":
    # rivals.py: their names; rivals.py servers NAME...: the servers that these need
    if sys.argv[1:2] == ["servers"]:
        print(*dict.fromkeys(RIVALS[name].get("on", "postgres") for name in sys.argv[2:]))
    else:
        print(*RIVALS)
