"""A host with the package bugle-jobs, as an application has it."""

import time

from bugle_jobs import Host

host = Host()


@host.on("noop")
async def noop(payload):
    pass


@host.on("stamp")
async def stamp(t0: int):
    return {"t0": t0, "t": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}


host.run()
