"""What `bugle host check` asks of a host."""

import asyncio

from bugle_jobs import AsyncJob, CallFailed, Fail, Host, Job, NewJob, Skip, Snooze, Wait

host = Host(concurrency=8)


def new(job):
    fields = dict(job)
    return NewJob(fields.pop("command"), fields.pop("payload", {}), **fields)


@host.on("check.echo")
def echo(payload):
    return payload


@host.on("check.fail")
def fail(error, code=None, retryable=True, retry_after=None):
    raise Fail(error, code=code, retryable=retryable, retry_after=retry_after)


@host.on("check.stop")
async def stop(job: AsyncJob):
    await asyncio.Event().wait()


@host.on("check.snooze")
def snooze(delay: float):
    raise Snooze(delay)


@host.on("check.wait")
def wait(token: str, at_most: float):
    return Wait(token, at_most=at_most)


@host.on("check.skip")
def skip(reason: str):
    raise Skip(reason)


@host.on("check.progress")
def progress(job: Job, percent, note=None):
    job.progress(percent, note)


@host.on("check.step")
def step(job: Job):
    return job.step("check", lambda: job.payload["output"])


@host.on("check.spawn")
async def spawn(job: AsyncJob):
    children = await job.children()
    if children:
        return [child.result for child in children]
    await job.spawn([new(one) for one in job.payload])


@host.on("check.enqueue")
def enqueue(job: Job):
    try:
        return [str(id) for id in job.enqueue_many([new(one) for one in job.payload])]
    except CallFailed as error:
        raise Fail(error.error, code=error.code)


@host.on_many("check.batch", most=10)
def batch(jobs):
    return [job.payload for job in jobs]


@host.on_many("check.batch_fail", most=10)
def batch_fail(jobs):
    raise ValueError("the call has failed")


host.run()
