"""Payloads become arguments, new jobs become JSON, and functions can be tested without a worker."""

import dataclasses
import unittest
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Dict, List, Optional, Union
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


if __name__ == "__main__":
    unittest.main()
