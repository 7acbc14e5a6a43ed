"""Payloads become arguments, new jobs become JSON, and functions can be tested without a worker."""

import asyncio
import dataclasses
import unittest
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, AsyncIterator, Dict, List, Optional, Union
from uuid import UUID

from bugle_jobs import (
    AsyncJob,
    BadPayload,
    Ended,
    Fail,
    Host,
    Job,
    NewJob,
    Snooze,
    Wait,
    enqueue,
    enqueue_many,
    testing,
)
from bugle_jobs._decode import decoder

try:
    import pydantic
except ImportError:
    pydantic = None


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclasses.dataclass
class Item:
    name: str
    pieces: int = 1


@dataclasses.dataclass
class Order:
    id: UUID
    items: List[Item]
    size: Size = Size.SMALL
    placed: Optional[datetime] = None


class PayloadTest(unittest.TestCase):
    def test_a_dataclass_is_built_with_everything_in_it(self) -> None:
        host = Host()
        seen: List[Order] = []

        @host.on("order")
        def order(order: Order) -> None:
            seen.append(order)

        id = "7b0c2b5e-9e0c-4a4e-8d0e-0b1f7b0c2b5e"
        payload = {"id": id, "items": [{"name": "tea"}], "size": "l", "placed": "2026-11-18T09:00:00Z"}
        self.assertEqual(testing.run(host, "order", payload).outcome, "done")
        placed = datetime(2026, 11, 18, 9, tzinfo=timezone.utc)
        self.assertEqual(seen, [Order(UUID(id), [Item("tea")], Size.LARGE, placed)])

        ran = testing.run(host, "order", {"id": id, "items": [{"name": "tea", "pieces": "two"}]})
        self.assertEqual(ran.error, "payload.items[0].pieces: expected an integer, not 'two'")
        self.assertEqual((ran.code, ran.retryable), ("bad_payload", False))

    @unittest.skipIf(pydantic is None, "pydantic is not installed")
    def test_a_pydantic_model_is_validated(self) -> None:
        class Mail(pydantic.BaseModel):
            to: str
            copies: int = 1

        host = Host()

        @host.on("mail")
        def mail(job: Job, mail: Mail) -> Mail:
            return mail

        self.assertEqual(testing.run(host, "mail", {"to": "ada"}).result, {"to": "ada", "copies": 1})
        ran = testing.run(host, "mail", {"to": "ada", "copies": "secret"})
        self.assertEqual(ran.code, "bad_payload")
        self.assertTrue((ran.error or "").startswith("payload.copies: "), ran)
        self.assertNotIn("secret", ran.error or "")

    def test_types_are_checked_and_not_guessed(self) -> None:
        refused: List[Any] = [
            (int, True),
            (int, 1.5),
            (str, 5),
            (bool, "yes"),
            (float, "1"),
            (List[int], {}),
            (Dict[str, int], {"a": "b"}),
            (Optional[int], "x"),
            (Union[int, str], None),
            (Size, "xl"),
            (datetime, "yesterday"),
        ]
        for kind, value in refused:
            with self.assertRaises(BadPayload, msg=f"{kind} {value}"):
                decoder(kind)(value, "payload")
        taken: List[Any] = [(float, 1), (Optional[int], None), (Union[int, str], "x"), (Any, {}), (List[Any], [1, "x"])]
        for kind, value in taken:
            self.assertEqual(decoder(kind)(value, "payload"), value)

    def test_a_function_that_no_payload_fits_cannot_be_registered(self) -> None:
        host = Host()
        with self.assertRaisesRegex(TypeError, "send, parameter socket: JSON cannot be turned into"):

            @host.on("send")
            def send(socket: HostTestSocket) -> None: ...

        with self.assertRaisesRegex(TypeError, "cannot be positional"):

            @host.on("send")
            def send_all(*to: str) -> None: ...

        host.on("send")(lambda to: None)
        with self.assertRaisesRegex(ValueError, "has a function already"):
            host.on("send")(lambda to: None)

    def test_other_fields_go_to_keywords_and_all_of_it_to_payload(self) -> None:
        host = Host()

        @host.on("rest")
        def rest(to: str, **others: Any) -> Dict[str, Any]:
            return others

        @host.on("all")
        def everything(payload: Any) -> Any:
            return payload

        self.assertEqual(testing.run(host, "rest", {"to": "ada", "cc": "bob"}).result, {"cc": "bob"})
        self.assertEqual(testing.run(host, "all", [1, 2]).result, [1, 2])


class HostTestSocket:
    pass


class NewJobTest(unittest.TestCase):
    def test_options_have_the_names_of_columns(self) -> None:
        at = datetime(2026, 11, 18, 9, tzinfo=timezone.utc)
        job = NewJob("ship", {"order": 1}, queue="slow", run_at=at, timeout=timedelta(minutes=5), priority=None)
        self.assertEqual(
            job.to_dict(),
            {
                "command": "ship",
                "payload": {"order": 1},
                "queue": "slow",
                "run_at": "2026-11-18T09:00:00+00:00",
                "timeout": "300 seconds",
            },
        )

    def test_what_would_be_rejected_later_is_rejected_at_once(self) -> None:
        with self.assertRaisesRegex(TypeError, "no option 'prio'; there are after, deadline"):
            NewJob("ship", prio=1)  # type: ignore[call-arg]
        with self.assertRaisesRegex(ValueError, "must have a time zone"):
            NewJob("ship", run_at=datetime(2026, 11, 18))
        with self.assertRaisesRegex(ValueError, "delay must be a number of seconds"):
            NewJob("ship", delay=-1)
        with self.assertRaisesRegex(TypeError, "steps must be a list"):
            NewJob("ship", steps="fetch")
        with self.assertRaisesRegex(TypeError, "not a connection that is known"):
            enqueue(object(), "ship")


def build() -> Host:
    host = Host()

    @host.on("flaky")
    def flaky(job: Job) -> int:
        if job.attempt < 3:
            raise ValueError("not yet")
        return job.attempt

    @host.on("count")
    def count(page: int) -> Dict[str, int]:
        return {"words": page * 10}

    @host.on("report")
    async def report(job: AsyncJob) -> Any:
        children = await job.children()
        if children:
            return sum(child.result["words"] for child in children)
        await job.spawn([NewJob("count", {"page": page}) for page in (1, 2)])

    @host.on("ask")
    def ask(job: Job) -> Any:
        if job.answer is None:
            raise Wait("t", at_most=60)
        return {"answer": job.answer}

    @host.on("later")
    def later(job: Job) -> None:
        if job.attempt == 1 and not job.headers.get("now"):
            raise Snooze(timedelta(hours=1))

    @host.on("order")
    async def order(job: AsyncJob, item: str) -> None:
        await job.progress(50)
        job.log("ordering")
        await job.step("stock", nothing)
        await job.enqueue("count", {"page": 7}, unique_key="one")

    @host.on_many("index", most=10)
    def index(jobs: List[Job]) -> List[Any]:
        return [Fail("odd") if job.payload % 2 else job.payload for job in jobs]

    return host


async def nothing() -> str:
    return "taken"


class TestingTest(unittest.TestCase):
    def test_one_run_shows_everything_that_the_function_did(self) -> None:
        ran = testing.run(build(), "order", {"item": "tea"})
        self.assertEqual((ran.outcome, ran.progress, ran.logs), ("done", [(50, None)], ["ordering"]))
        self.assertEqual(ran.steps, {"stock": "taken"})
        self.assertEqual(ran.enqueued, [NewJob("count", {"page": 7}, unique_key="one")])

        ended = [Ended(2, None, "completed", None, {"words": 5}, None)]
        self.assertEqual(testing.run(build(), "report", children=ended).result, 5)
        self.assertEqual(testing.run(build(), "flaky", attempt=3).result, 3)
        self.assertEqual([ran.outcome for ran in testing.run_many(build(), "index", [1, 2])], ["fail", "done"])
        with self.assertRaisesRegex(LookupError, "no function for 'fly'; its commands: ask"):
            testing.run(build(), "fly")

    def test_a_sandbox_runs_what_is_enqueued_until_nothing_is_left(self) -> None:
        with testing.Sandbox(build()) as sandbox:
            enqueue(None, "flaky")
            enqueue_many(None, [NewJob("report"), NewJob("order", {"item": "tea"}), NewJob("order", {"item": "tea"})])
            enqueue(None, "chain", {"page": 1}, steps=["count", "ask"])

            sandbox.drain()
            states = {job.command: job.state for job in sandbox.jobs}
            self.assertEqual(states["flaky"], "retrying")
            self.assertEqual(states["chain"], "waiting")
            self.assertEqual(sandbox.job(2).result, 30)

            sandbox.resolve(5, "yes")
            sandbox.advance(5)
            sandbox.drain()
            self.assertEqual(sandbox.job(1).state, "retrying")
            sandbox.drain(until_empty=True)
            self.assertEqual(sandbox.job(1).result, 3)
            self.assertEqual(sandbox.job(5).result, {"words": 10, "answer": "yes"})

    def test_time_is_under_the_control_of_the_test(self) -> None:
        sandbox = testing.Sandbox(build())
        job = sandbox.enqueue("later", delay=timedelta(minutes=10))
        self.assertEqual(sandbox.drain(), [])
        sandbox.advance(timedelta(minutes=10))
        sandbox.drain()
        self.assertEqual((job.state, job.run_at - sandbox.now), ("scheduled", timedelta(hours=1)))

    def test_a_job_that_keeps_failing_fails_for_good(self) -> None:
        sandbox = testing.Sandbox(build())
        job = sandbox.enqueue("flaky", max_attempts=2)
        sandbox.drain(until_empty=True)
        self.assertEqual((job.state, job.attempt, job.code), ("failed", 2, "ValueError"))

    def test_what_is_enqueued_can_be_asserted(self) -> None:
        host = build()

        @host.on("place")
        def place(item: str) -> None:
            enqueue(None, "count", {"page": 1, "item": item}, queue="slow")

        ran = testing.run(host, "place", {"item": "tea"})
        job = testing.assert_enqueued(ran, "count", {"item": "tea"}, queue="slow")
        self.assertEqual(job.to_dict()["payload"]["page"], 1)
        with self.assertRaisesRegex(AssertionError, r"(?s)'jam'.* is not enqueued; enqueued are:.*NewJob\('count'"):
            testing.assert_enqueued(ran, "count", {"item": "jam"})

        sandbox = testing.Sandbox(host)
        sandbox.enqueue("place", {"item": "jam"})
        sandbox.drain()
        testing.assert_enqueued(sandbox, "count", {"item": "jam"})
        self.assertEqual([job.state for job in sandbox.jobs], ["completed", "completed"])

    def test_batches_run_together_as_far_as_they_are_due(self) -> None:
        sandbox = testing.Sandbox(build())
        jobs = [sandbox.enqueue("index", number) for number in range(12)]
        later = sandbox.enqueue("index", 2, delay=60)
        sizes: List[int] = []
        index = sandbox.host.functions["index"]

        def counted(batch: List[Job]) -> Any:
            sizes.append(len(batch))
            return index.function(batch)

        sandbox.host.functions["index"] = index._replace(run=counted)
        sandbox.drain()
        self.assertEqual((sizes, later.state), ([10, 2], "scheduled"))
        self.assertEqual([job.state for job in jobs[:2]], ["completed", "retrying"])
        self.assertEqual(jobs[10].result, 10)

    def test_one_loop_and_the_lifespan_of_the_host_are_around_all_async_functions(self) -> None:
        seen: List[Any] = []

        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            seen.append("begin")
            yield
            seen.append("end")

        host = Host(lifespan=lifespan)

        @host.on("look")
        async def look() -> None:
            seen.append(asyncio.get_running_loop())

        testing.run(host, "look")
        self.assertEqual((seen[0], seen[-1], len(seen)), ("begin", "end", 3))
        for asynchronous in (False, True):
            seen.clear()
            sandbox = testing.Sandbox(host)
            sandbox.enqueue("look"), sandbox.enqueue("look")
            ran = asyncio.run(sandbox.adrain()) if asynchronous else sandbox.drain()
            self.assertEqual([job.state for job in ran], ["completed", "completed"])
            self.assertEqual((seen[0], seen[-1], len(seen)), ("begin", "end", 4))
            self.assertIs(seen[1], seen[2])

    def test_adrain_runs_plain_and_async_functions(self) -> None:
        async def story() -> None:
            with testing.Sandbox(build()) as sandbox:
                enqueue(None, "report")
                await sandbox.adrain(until_empty=True)
                self.assertEqual(sandbox.job(1).result, 30)

        asyncio.run(story())

    def test_a_job_can_be_told_to_stop(self) -> None:
        host = build()

        @host.on("patient")
        def patient(job: Job) -> None:
            job.sleep(3600)

        @host.on("waits")
        async def waits(job: AsyncJob) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                job.log(f"stopped: {job.cancelled}")

        for command in ("patient", "waits"):
            ran = testing.run(host, command, cancelled="timeout")
            self.assertEqual((ran.outcome, ran.reason), ("cancelled", "timeout"))
        self.assertEqual(ran.logs, ["stopped: timeout"])

    def test_a_drain_that_does_not_come_to_an_end_says_so(self) -> None:
        host = Host()

        @host.on("again")
        def again() -> None:
            raise Snooze(60)

        sandbox = testing.Sandbox(host)
        sandbox.enqueue("again")
        with self.assertRaisesRegex(RuntimeError, r"job 1 \(again\) would be run"):
            sandbox.drain(until_empty=True, most=50)
        self.assertEqual(len(sandbox.job(1).runs), 50)

    def test_options_do_in_a_sandbox_what_they_say_or_are_refused(self) -> None:
        sandbox = testing.Sandbox(build())
        one = sandbox.enqueue("count", {"page": 1}, idempotency_key="a", on_success="later", on_failure="ask")
        sandbox.drain()
        self.assertIs(sandbox.enqueue("count", {"page": 2}, idempotency_key="a"), one)
        follower = testing.assert_enqueued(sandbox, "later", {"job": one.id, "state": "completed"})
        self.assertEqual(follower.to_dict()["payload"]["result"], {"words": 10})
        sandbox.enqueue("count", {}, on_failure="ask")
        sandbox.drain()
        failure = testing.assert_enqueued(sandbox, "ask", {"state": "failed"})
        self.assertEqual(failure.to_dict()["payload"]["error"], "payload.page is missing")
        with self.assertRaisesRegex(ValueError, "a sandbox does not know 'after'"):
            sandbox.enqueue("count", after=[1])


if __name__ == "__main__":
    unittest.main()
