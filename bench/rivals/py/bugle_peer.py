"""Bugle with functions in Python: the package bugle-jobs of sdk/python. argv as procrastinate_peer.py; env: PGURL, BUGLE (the
program). Jobs are enqueued with the package over asyncpg; the worker starts this program once more, as a host."""
import asyncio, json, os, pathlib, signal, subprocess, sys, tempfile
from contextlib import asynccontextmanager
sys.path.insert(0, os.environ.get("BUGLE_JOBS", str(pathlib.Path(__file__).resolve().parents[3] / "sdk/python/src")))
from bugle_jobs import Host, NewJob, aenqueue, aenqueue_many
from lib import Handler, now, out, rate, single

URL, BUGLE = os.environ.get("PGURL", ""), os.environ.get("BUGLE", "bugle")
cmd, *args = sys.argv[1:]


def serve():
    # stdout belongs to the worker's log: what the harness reads goes to the first process' stdout
    os.dup2(os.open(os.environ["RIVAL_OUT"], os.O_WRONLY), 1)
    handler = Handler(int(os.environ["RIVAL_EXPECT"]))

    @asynccontextmanager
    async def lifespan():
        asyncio.get_running_loop().call_later(0.7, lambda: out(f"READY {now()}"))
        yield
        handler.stats()

    host = Host(concurrency=int(os.environ["RIVAL_CONC"]), lifespan=lifespan)

    @host.on("bench")
    async def bench(payload):
        await handler.handle(payload)

    host.run()


def worker(conc, expect):
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    with tempfile.TemporaryDirectory() as folder:
        env = {"RIVAL_OUT": f"/proc/{os.getpid()}/fd/1", "RIVAL_EXPECT": expect, "RIVAL_CONC": conc}
        env["BUGLE_JOBS"] = sys.path[0]
        names = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
        program = json.dumps([sys.executable, os.path.abspath(__file__), "serve"])
        file = f"[queues]\ndefault = {conc}\n[hosts.bench]\nprogram = {program}\nenv = {{ {names} }}\n"
        path = os.path.join(folder, "worker.toml")
        pathlib.Path(path).write_text(file)
        call = [BUGLE, "worker", "--config", path, "--workdir", folder, "--log", "warn"]
        process = subprocess.Popen(call, env={**os.environ, "BUGLE_DATABASE_URL": URL}, stdout=2)
        sys.exit(process.wait())


async def enqueue():
    import asyncpg
    if cmd == "bulk":
        n, batch = int(args[0]), int(args[1])
        connection = await asyncpg.connect(URL)
        t0 = now()
        for i in range(0, n, batch):
            jobs = [NewJob("bench", {"k": "noop", "i": j}) for j in range(i, min(n, i + batch))]
            await aenqueue_many(connection, jobs)
        out(json.dumps({"seconds": (now() - t0) / 1e9}))
    elif cmd in ("single", "rate"):
        conns = [await asyncpg.connect(URL) for _ in range(int(args[1] if cmd == "single" else args[2]))]
        one = lambda p, c: aenqueue(conns[c], "bench", p)
        if cmd == "single":
            out(json.dumps({"seconds": await single(int(args[0]), len(conns), one)}))
        else:
            out(json.dumps(await rate(float(args[0]), float(args[1]), len(conns), one)))
    elif cmd == "sleepjob":
        await aenqueue(await asyncpg.connect(URL), "bench", {"k": "sleep", "ms": int(args[0])})
        out("{}")


if cmd == "setup":
    os.execvp(BUGLE, [BUGLE, "bench", "peer", "setup"])
elif cmd == "serve":
    serve()
elif cmd == "worker":
    worker(*args)
else:
    asyncio.run(enqueue())
