#!/usr/bin/env python3
"""A complete Bugle worker in Python: docs/internals/protocol.md in code. Needs psycopg 3 (pip install "psycopg[binary]>=3.2").

    DATABASE_URL=postgres://app_worker@localhost/shop ./worker.py

Put your own functions into EXECUTORS: payload in, result out; an exception is a failure, and the job is tried again.
"""
import json, os, signal, socket, threading, time, traceback
from concurrent.futures import ThreadPoolExecutor

import psycopg

EXECUTORS = {
    "greet": lambda payload: {"greeting": f"Hello, {payload['name']}!"},
    "shout": lambda payload: {"loud": payload["greeting"].upper()},
}
QUEUE, SLOTS = os.environ.get("QUEUE", "default"), 4


class Worker:
    def __init__(self, url):
        self.url, self.me, self.running, self.looking = url, None, {}, True
        self.lock, self.stopping = threading.RLock(), threading.Event()
        self.pool = ThreadPoolExecutor(SLOTS)

    def connect(self):
        """The first connection proves that we live, claims and hears; the second tells. After a loss: say what still runs."""
        self.first, self.second = (psycopg.connect(self.url, autocommit=True, application_name="bugle worker (python)",
                                                   keepalives_idle=5, keepalives_interval=2, keepalives_count=2) for _ in range(2))
        held = [f"({job},{claim})" for job, claim in self.running]
        if self.me:  # JB010, which ends us: a failover to a server that does not know us
            for job, claim, _ in self.first.execute("select * from bugle.attach(%s, %s, %s::bugle.held_job[])", (*self.me, held)):
                self.running.pop((job, claim), None)  # fenced: another worker has it now
        else:
            self.me = self.first.execute(
                "select worker, nonce from bugle.register('python', %s, %s, '1', 1, %s, %s, %s)",
                (socket.gethostname(), os.getpid(), [QUEUE], [SLOTS], list(EXECUTORS))).fetchone()
            print(f"worker {self.me[0]} is ready", flush=True)
        self.bell, own = self.first.execute("select bugle.bell_channel(%s), bugle.worker_channel(%s)", (QUEUE, self.me[0])).fetchone()
        self.first.execute(f"listen {own}")
        if self.first.execute("select bugle.should_drain(%s, %s)", self.me).fetchone()[0]:
            self.stopping.set()

    def tell(self, call, *arguments):
        """A call about jobs. It is safe to repeat, and is retried until the database accepts it."""
        while True:
            try:
                with self.lock:
                    return self.second.execute(f"select * from bugle.{call}", (*self.me, *arguments)).fetchall()
            except psycopg.OperationalError:
                time.sleep(0.2)

    def run(self, job, claim, command, payload, steps):
        held = f"({job},{claim})"
        try:
            if steps:
                return self.run_chain(held, steps, payload)
            result = json.dumps(EXECUTORS[command](payload))
            fenced = self.tell("complete(%s, %s, array[(%s, %s, %s)::bugle.finished_job])", job, claim, result)
        except Exception as error:
            text = f"{error!r}\n{traceback.format_exc()}"[:5000].replace("\0", "")
            fenced = self.tell("fail(%s, %s, array[(%s, %s, %s, %s, true, null)::bugle.failed_job])", job, claim, text, type(error).__name__)
        finally:
            self.running.pop((job, claim), None)
        if fenced: print(f"job {job}: {fenced[0][2]}", flush=True)

    def run_chain(self, held, steps, payload):
        """Each step gets the payload under the outputs of the steps before it; the last one completes the job."""
        attempt = 1
        step = self.tell("start_step(%s, %s, %s::bugle.held_job, %s)", held, attempt)[0]
        while step[1] and step[0] in (None, "repeated"):
            position, context = step[1], step[2] or {}
            try:
                output = json.dumps(EXECUTORS[steps[position - 1]]({**payload, **context}))
            except Exception as error:
                verdict, delay = self.tell("retry_step(%s, %s, %s::bugle.held_job, %s, %s, %s, %s)",
                                           held, position, attempt, repr(error), type(error).__name__)[0]
                if verdict or delay is None:
                    raise
                time.sleep(delay)
                attempt += 1
                step = self.tell("start_step(%s, %s, %s::bugle.held_job, %s)", held, attempt)[0]
            else:
                step = self.tell("finish_step(%s, %s, %s::bugle.held_job, %s, %s, %s)", held, position, attempt, output)[0]
                attempt = 1

    def beat(self):
        """Tells that we live; does the keeper's chores if we are the keeper; hears which queues have work for us."""
        while not self.stopping.is_set() or self.running:
            held = [f"({job},{claim})" for job, claim in list(self.running)]
            role, again, due, _, work, upkeep = self.tell("heartbeat(%s, %s, %s::bugle.held_job[], true)", held)[0][:6]
            self.looking = self.looking or bool(work)
            if role != "none" and due is not None and due < again:
                self.stopping.wait(max(due, 0.01))
                with self.lock:
                    self.second.execute("select bugle.expire()")
                    self.second.execute("select bugle.promote()")
            elif not upkeep or self.second.execute("select bugle.upkeep()").fetchone()[0] is None:
                self.stopping.wait(again)

    def claim(self, mode):
        rows = self.first.execute(
            "select id, claim, command, payload, steps from bugle.claim(%s, %s, array[(%s, %s, null, %s)::bugle.queue_request]) order by turn, priority, run_at, id",
            (*self.me, QUEUE, SLOTS - len(self.running), mode)).fetchall()
        large = [row[0] for row in rows if row[3] is None]
        fetched = dict(self.first.execute("select id, payload from bugle.payloads(%s, %s)", (self.me[0], large)).fetchall()) if large else {}
        for job, claim, command, payload, steps in rows:
            self.running[job, claim] = command
            self.pool.submit(self.run, job, claim, command, fetched.get(job, payload), steps)
        return len(rows)

    def serve(self):
        mode, self.looking = "awake", True
        while not self.stopping.is_set():
            if self.second.closed:
                raise psycopg.OperationalError("the second connection is lost")
            if self.looking and len(self.running) < SLOTS:
                found, mode = self.claim(mode), "awake"
                if found: continue
                self.first.execute(f"listen {self.bell}")  # first listen, then ask to sleep
                _, mode, has_work = self.first.execute("select * from bugle.arm(%s, %s)", (self.me[0], [QUEUE])).fetchone()
                self.looking = has_work or mode == "awake"
                if has_work: continue
            for notification in self.first.notifies(timeout=0.02 if self.looking else 0.5, stop_after=1):
                self.looking = True
                if notification.payload == "drain": self.stopping.set()
        self.first.execute("select bugle.stand_down(%s, %s)", ([QUEUE], [mode]))
        self.pool.shutdown(wait=True)
        self.tell("detach(%s, %s)")


def main():
    worker = Worker(os.environ["DATABASE_URL"])
    for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda *_: worker.stopping.set())
    worker.connect()
    threading.Thread(target=worker.beat, daemon=True).start()
    while not worker.stopping.is_set():
        try:
            with worker.lock:
                if worker.first.closed:
                    worker.connect()
            worker.serve()
        except psycopg.OperationalError as error:
            print(f"lost the database: {error}", flush=True)
            worker.first.close()
            worker.stopping.wait(0.5)


main()
