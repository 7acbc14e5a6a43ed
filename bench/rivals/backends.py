"""What holds a rival's jobs: where its program finds it, how it is emptied, and how many jobs in it are unfinished
(not yet finished and acknowledged). measure.py asks only here.

env           what the rival's program is told, above all the address
empty(setup)  leaves nothing behind; setup calls the rival's own set-up
settle()      what is done between filling the queue and draining it
unfinished()  the count, asked from the server itself over a connection (or program) of its own
close()       gives the connection back
version()     of the server, where it is not the same for all rivals
"""
import os
import subprocess
import time
import psycopg

P = os.path.dirname(os.path.abspath(__file__))
SOCK, PORT = f"{P}/socket", 54329
ANALYZE = os.environ.get("ANALYZE", "1") == "1"


def dsn(db):
    return f"host={SOCK} port={PORT} user=postgres dbname={db}"


def said(argv, **options):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=60, **options).stdout.strip()


class Postgres:
    """a database for each rival; entry: db, remaining, analyze"""

    def __init__(self, entry):
        self.entry, self.db = entry, None
        # one form understood by libpq, asyncpg, node-postgres and sqlx: unix socket as host parameter
        self.env = {"PGURL": f"postgresql://postgres@localhost:{PORT}/{entry['db']}?host={SOCK}"}

    def version(self):
        return None

    def empty(self, setup):
        self.close()
        with psycopg.connect(dsn("postgres"), autocommit=True) as a:
            a.execute(f"drop database if exists {self.entry['db']} with (force)")
            a.execute(f"create database {self.entry['db']}")
        setup()
        with psycopg.connect(dsn("postgres"), autocommit=True) as a:
            a.execute("checkpoint")

    def connect(self):
        return psycopg.connect(dsn(self.entry["db"]), autocommit=True)

    def settle(self):
        if ANALYZE and self.entry.get("analyze", True):
            with self.connect() as a:
                a.execute("analyze")

    def unfinished(self):
        self.db = self.db or self.connect()
        return self.db.execute(self.entry["remaining"]).fetchone()[0]

    def close(self):
        if self.db:
            self.db.close()
            self.db = None


class Redis:
    """a server for each configuration; unfinished: Lua that counts"""

    def __init__(self, folder, unfinished):
        self.socket, self.lua = f"{folder}/socket", unfinished
        self.env = {"REDIS_SOCKET": self.socket}

    def ask(self, *command):
        return said(["redis-cli", "-e", "-s", self.socket, *command])

    def info(self, section, name):
        return next(l.split(":")[1] for l in self.ask("info", section).splitlines() if l.startswith(name + ":"))

    def version(self):
        return "Redis " + self.info("server", "redis_version")

    def empty(self, setup):
        self.ask("flushall")
        # the log starts anew too, so that it is not rewritten during a measurement because of earlier ones
        self.ask("bgrewriteaof")
        while self.info("persistence", "aof_rewrite_in_progress") != "0":
            time.sleep(0.05)
        setup()

    def settle(self):
        pass

    def unfinished(self):
        return int(self.ask("eval", self.lua, "0"))

    def close(self):
        pass


class RabbitMQ:
    """a node for each run; unfinished: Erlang that counts"""

    def __init__(self, folder, unfinished):
        self.folder, self.erlang = folder, unfinished
        client, self.epmd, _ = open(f"{folder}/ports").read().split()
        self.env = {"AMQP_URL": f"amqp://guest:guest@127.0.0.1:{client}"}

    def ask(self, expression):
        cookie = open(f"{self.folder}/.erlang.cookie").read()
        answer = said(["erl_call", "-sname", "rivals@localhost", "-c", cookie, "-e"], input=expression + "\n",
                      env={**os.environ, "ERL_EPMD_PORT": self.epmd})
        return answer.removeprefix("{ok, ").removesuffix("}")

    def version(self):
        return "RabbitMQ " + self.ask("list_to_atom(rabbit_misc:version()).").strip("'")

    def empty(self, setup):
        setup()

    def settle(self):
        pass

    def unfinished(self):
        return int(self.ask(self.erlang))

    def close(self):
        pass


# BullMQ: every list and set that holds jobs which have not ended
BULLMQ = """local n, key = 0, 'bull:bench:'
for _, list in ipairs({'wait', 'paused', 'active'}) do n = n + redis.call('llen', key .. list) end
for _, set in ipairs({'delayed', 'prioritized', 'waiting-children'}) do n = n + redis.call('zcard', key .. set) end
return n"""
# ready and unacknowledged messages, from the state that the queue has written; AMQP itself (a passive declare) tells
# only the ready ones, and the node's statistics are seconds old
QUORUM = """{ok, {_, N}, _} = ra:local_query({'%2F_bench', node()}, fun rabbit_fifo:query_messages_total/1), N."""


def backend(entry):
    on = entry.get("on", "postgres")
    if on == "postgres":
        return Postgres(entry)
    if on == "rabbitmq":
        return RabbitMQ(f"{P}/rabbitmq", QUORUM)
    return Redis(f"{P}/{on}", BULLMQ)
