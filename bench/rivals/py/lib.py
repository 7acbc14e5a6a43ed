"""Shared plumbing of the Python rivals; times are CLOCK_MONOTONIC nanoseconds (see node/lib.mjs)."""
import asyncio, os, signal, sys, time

now = time.monotonic_ns


def out(s: str) -> None:
    os.write(1, (s + "\n").encode())


class Handler:
    def __init__(self, expect: int):
        self.expect, self.total, self.uniq, self.dups = expect, 0, 0, 0
        self.seen = bytearray(max(expect, 1))

    def stats(self) -> None:
        out(f"STATS {self.total} {self.uniq} {self.dups}")

    def install_signals(self, loop) -> None:
        def die():
            self.stats()
            os._exit(0)
        loop.add_signal_handler(signal.SIGTERM, die)
        loop.add_signal_handler(signal.SIGINT, die)

    async def handle(self, p: dict) -> None:
        t = now()
        k = p["k"]
        if k == "lat":
            out(f"LAT {p['t0']} {t}")
            return
        if k == "sleep":
            out(f"START {t} {os.getpid()}")
            await asyncio.sleep(p["ms"] / 1000)
            out(f"END {now()}")
            return
        self.total += 1
        if self.total == 1:
            out(f"FIRST {t}")
        if self.total % 1000 == 0:
            out(f"PROG {self.total} {t}")
        i = p["i"]
        if i < self.expect:
            if self.seen[i]:
                self.dups += 1
            else:
                self.seen[i] = 1
                self.uniq += 1
                if self.uniq == self.expect:
                    out(f"HANDLED {self.uniq} {t}")


async def single(n, conns, enqueue):
    it = iter(range(n))

    async def loop(c):
        for i in it:
            await enqueue({"k": "noop", "i": i}, c)

    t0 = now()
    await asyncio.gather(*(loop(c) for c in range(conns)))
    return (now() - t0) / 1e9


async def rate(per_s, secs, conns, enqueue):
    step, total = 1e9 / per_s, round(per_s * secs)
    start = now() + 50_000_000
    end = start + secs * 1e9
    made = 0

    async def loop(c):
        nonlocal made
        for i in range(c, total, conns):
            w = (start + i * step - now()) / 1e9
            if w > 0:
                await asyncio.sleep(w)
            t0 = now()
            if t0 > end + 1e9:
                return
            await enqueue({"k": "lat", "t0": t0}, c)
            made += 1

    await asyncio.gather(*(loop(c) for c in range(conns)))
    return {"produced": made, "seconds": (now() - start) / 1e9}
