"""A host with something of everything, for the tests: see app.mts for the same in TypeScript."""

import asyncio
import os
from dataclasses import dataclass

import psycopg

from bugle_jobs import AsyncJob, Fail, Host, Job, NewJob, Snooze, Wait

host = Host(concurrency=8)


@dataclass
class Mail:
    to: str
    subject: str = "hello"


@host.on("send_mail")
async def send_mail(job: AsyncJob, mail: Mail):
    await job.progress(50, "connecting")
    job.log("a line")
    if "@" not in mail.to:
        raise Fail("no such address", code="bad_address", retryable=False)
    return {"sent_to": mail.to, "subject": mail.subject}


@host.on("charge")
def charge(job: Job):
    number = job.step("card", lambda: f"paid in attempt {job.attempt}")
    if job.attempt == 1:
        raise ConnectionError("lost")
    return number


@host.on("report")
async def report(job: AsyncJob):
    children = await job.children()
    if not children:
        return await job.spawn([NewJob("count", {"page": page}) for page in (1, 2)])
    return sorted(child.result["words"] for child in children)


@host.on("count")
def count(page: int):
    return {"words": page * 10}


@host.on("passes_on")
def passes_on(job: Job):
    return job.enqueue("count", {"page": 5}, priority=-1) > job.id


@host.on("ask")
def ask(job: Job):
    if job.answer is None:
        return Wait("token", at_most=600)
    return {"answer": job.answer}


@host.on("later")
def later(job: Job):
    with open(job.payload["file"], "a") as file:
        file.write("ran\n")
    if os.path.getsize(job.payload["file"]) < 8:
        raise Snooze(0)
    return job.attempt


@host.on("files")
def files(job: Job):
    (job.workspace() / "file").write_text("text")
    return (job.workspace() / "file").read_text()


@host.on("forever")
async def forever(job: AsyncJob):
    await asyncio.Event().wait()


@host.on("book")
def book(job: Job, item: str):
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("insert into bookings values (%s)", [item])
        job.complete_in(connection, {"booked": item})


@host.on_many("index", most=10)
def index(jobs: "list[Job]"):
    return [Fail("odd", retryable=False) if job.payload["n"] % 2 else job.payload["n"] for job in jobs]


host.run()
