"""Payloads become arguments, new jobs become JSON, and functions can be tested without a worker."""

import asyncio
import dataclasses
import sys
import unittest
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Sequence, Union
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
    aenqueue,
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
        with self.assertRaisesRegex(ValueError, "is already registered"):
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


@dataclasses.dataclass
class Tree:
    name: str
    children: "List[Tree]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page:
    text: str


class RegisteringTest(unittest.TestCase):
    def test_a_type_may_contain_itself(self) -> None:
        host = Host()
        host.on("tree")(children_of)

        payload: Dict[str, Any] = {"name": "a", "children": [{"name": "b", "children": []}]}
        self.assertEqual(testing.run(host, "tree", payload).result, payload["children"])
        ran = testing.run(host, "tree", {"name": "a", "children": [{"name": 1}]})
        self.assertEqual(ran.error, "payload.children[0].name: expected a string, not 1")
        deep: Dict[str, Any] = {"name": "leaf"}
        for _ in range(100):
            deep = {"name": "a", "children": [deep]}
        self.addCleanup(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(300)
        ran = testing.run(host, "tree", deep)
        self.assertEqual((ran.code, ran.retryable), ("bad_payload", False))
        self.assertTrue((ran.error or "").endswith(": nested too deeply"), ran)

    def test_a_decorator_without_its_parentheses_is_an_error_at_once(self) -> None:
        host = Host()
        with self.assertRaisesRegex(TypeError, r'write @host.on\("command"\) above the function'):
            host.on(children_of)  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, r'write @host.on_many\("command", most=100\)'):
            host.on_many(children_of, most=1)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "most must be between 1 and 10000, not 0"):
            host.on_many("children_of", most=0)

    def test_a_function_that_could_never_be_called_is_an_error_when_it_is_registered(self) -> None:
        def nothing() -> None: ...
        def two(jobs: List[Job], more: int) -> None: ...
        def one(job: Job) -> None: ...
        def text(text: str) -> None: ...
        def pages(pages: List[Page]) -> None: ...
        def last(to: str, job: Job) -> None: ...

        host = Host()
        refused: List[Any] = [
            (nothing, {}, "takes one list"),
            (two, {}, "takes one list"),
            (one, {}, r"parameter job: a batch is a list, such as List\[Job\]"),
            (text, {}, "parameter text: a batch is a list"),
            (pages, {"payload": Page}, r"with payload=…, the function takes List\[Job\]"),
        ]
        for function, options, message in refused:
            with self.assertRaisesRegex(TypeError, message):
                host.on_many("index", most=2, **options)(function)
        for function in (last, lambda to, job: None):
            with self.assertRaisesRegex(TypeError, "parameter job: the job must be the first parameter"):
                host.on("send")(function)
        self.assertEqual(host.functions, {})

    def test_what_is_around_a_function_sees_its_jobs_and_what_it_raises(self) -> None:
        seen: List[Any] = []

        @contextmanager
        def around(jobs: Sequence[Union[Job, AsyncJob]]) -> Iterator[None]:
            seen.append([job.command for job in jobs])
            try:
                yield
            except ValueError as error:
                seen.append(str(error))
                raise

        host = Host(around=around)
        host.on_many("index", most=10)(lambda jobs: None)
        host.on("plain")(lambda: 1)

        @host.on("fails")
        async def fails() -> None:
            await asyncio.sleep(0)  # why: it waits once, as functions do
            raise ValueError("no")

        testing.run_many(host, "index", [1, 2])
        self.assertEqual(testing.run(host, "plain").result, 1)
        self.assertEqual(testing.run(host, "fails").code, "ValueError")
        self.assertEqual(seen, [["index", "index"], ["plain"], ["fails"], "no"])

    def test_what_the_worker_would_reject_is_an_error_in_the_function(self) -> None:
        refused: List[Any] = [
            (TypeError, "the code of a failure", lambda: Fail("a", code=5)),  # type: ignore[arg-type]
            (TypeError, "retryable must be True or False", lambda: Fail("a", retryable="no")),  # type: ignore[arg-type]
            (ValueError, "the delay must be a number", lambda: Snooze("60")),  # type: ignore[arg-type]
            (TypeError, "the token must be a string", lambda: Wait(7)),  # type: ignore[arg-type]
        ]
        for kind, message, make in refused:
            with self.assertRaisesRegex(kind, message):
                make()
        for percent in ("half", 200, -1, True):
            host = Host()
            host.on("work")(lambda job: job.progress(percent))
            ran = testing.run(host, "work")
            self.assertEqual((ran.outcome, ran.code), ("fail", "ValueError"))
            self.assertIn("a number from 0 to 100", ran.error or "")


def children_of(tree: Tree) -> List[Tree]:
    return tree.children


class BatchTest(unittest.TestCase):
    def test_a_payload_that_does_not_fit_fails_alone(self) -> None:
        host = Host()
        seen: List[Any] = []

        @host.on_many("pages", most=10)
        def of_pages(pages: List[Page]) -> List[int]:
            seen.append(pages)
            return [len(page.text) for page in pages]

        @host.on_many("jobs", most=10, payload=Page)
        async def of_jobs(jobs: List[AsyncJob]) -> None:
            for job in jobs:
                job.done(len(job.payload.text))

        for command in ("pages", "jobs"):
            good, bad, other = testing.run_many(host, command, [{"text": "a"}, {}, {"text": "bc"}])
            self.assertEqual((good.result, other.result), (1, 2))
            told = (bad.error, bad.code, bad.retryable, bad.alone)
            self.assertEqual(told, ("payload.text is missing", "bad_payload", False, False))
        self.assertEqual(seen, [[Page("a"), Page("bc")]])
        testing.run_many(host, "pages", [{}, 5])
        self.assertEqual(len(seen), 1, "there is nothing to call it with")

    def test_after_an_exception_the_jobs_are_retried_each_in_its_own_call(self) -> None:
        host = Host()
        sizes: List[int] = []

        @host.on_many("index", most=10)
        def index(jobs: List[Job]) -> List[str]:
            sizes.append(len(jobs))
            return [job.payload["text"] for job in jobs]

        ran = testing.run_many(host, "index", [{"text": "a"}, {}, {"text": "b"}])
        self.assertEqual([(one.code, one.retryable, one.alone) for one in ran], [("KeyError", True, True)] * 3)
        self.assertTrue(testing.run_many(host, "index", [{}])[0].alone, "it must not fail the others the next time")

        sizes.clear()
        sandbox = testing.Sandbox(host)
        jobs = [sandbox.enqueue("index", payload, max_attempts=2) for payload in ({"text": "a"}, {}, {"text": "b"})]
        sandbox.drain(until_empty=True)
        self.assertEqual(sizes, [3, 1, 1, 1])
        self.assertEqual([job.state for job in jobs], ["completed", "failed", "completed"])

    def test_an_outcome_that_is_raised_for_all_jobs_keeps_them_together(self) -> None:
        host = Host()

        @host.on_many("index", most=10)
        def index(jobs: List[Job]) -> None:
            raise Fail("the search server is down", retry_after=60)

        self.assertEqual([one.alone for one in testing.run_many(host, "index", [1, 2])], [False, False])


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
        with self.assertRaisesRegex(TypeError, "after takes the ids of jobs, which are integers, not 'first'"):
            NewJob("ship", after=[4, {"job": 5, "on_failure": "run"}, "first"])  # type: ignore[list-item]
        with self.assertRaisesRegex(TypeError, "not a connection that is known"):
            enqueue(object(), "ship")
        with self.assertRaisesRegex(TypeError, "takes an open connection, not a URL"):
            enqueue("postgres://", "ship")
        with self.assertRaisesRegex(TypeError, "takes a connection with an open transaction, not Engine"):
            enqueue(Engine(), "ship")
        with self.assertRaisesRegex(TypeError, "takes a connection with an open transaction, not Engine"):
            asyncio.run(aenqueue(Engine(), "ship"))


class Engine:
    """As that of SQLAlchemy."""

    def begin(self) -> None: ...

    def connect(self) -> None: ...


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

    def test_a_completion_in_a_transaction_is_noted_and_its_sql_is_not_run(self) -> None:
        host = Host()

        @host.on("book")
        def book(job: Job, item: str) -> str:
            job.complete_in(None, {"booked": item})
            if item == "none":
                raise ValueError("rolled back")
            return "ignored"

        @host.on("abook")
        async def abook(job: AsyncJob, item: str) -> None:
            await job.complete_in(None, {"booked": item})

        for command in ("book", "abook"):
            ran = testing.run(host, command, {"item": "tea"})
            self.assertEqual((ran.outcome, ran.result), ("settled", {"booked": "tea"}))
        ran = testing.run(host, "book", {"item": "none"})
        self.assertEqual((ran.outcome, ran.result), ("fail", None))

        sandbox = testing.Sandbox(host)
        alone = sandbox.enqueue("book", {"item": "tea"})
        chain = sandbox.enqueue("both", {"item": "tea"}, steps=["book", "abook"])
        sandbox.drain()
        self.assertEqual((alone.state, alone.result), ("completed", {"booked": "tea"}))
        self.assertEqual((chain.state, chain.context, chain.step), ("completed", {"booked": "tea"}, 2))

    def test_a_field_that_no_job_has_is_an_error(self) -> None:
        with self.assertRaisesRegex(TypeError, "a job has no field 'atempt'; a test can give it answer, attempt"):
            testing.run(build(), "flaky", atempt=3)
        self.assertEqual(testing.run(build(), "flaky", attempt=3, id=17).result, 3)

    def test_jobs_of_commands_that_the_host_does_not_have_are_left(self) -> None:
        sandbox = testing.Sandbox(build())
        unknown = sandbox.enqueue("fly")
        chain = sandbox.enqueue("trip", {"page": 1}, steps=["count", "fly"])
        known = sandbox.enqueue("count", {"page": 1})
        self.assertEqual(sandbox.drain(until_empty=True), [chain, known])
        self.assertEqual((unknown.state, unknown.attempt), ("ready", 0))
        self.assertEqual((chain.state, chain.step, chain.attempt), ("ready", 1, 0))

    def test_a_unique_job_is_kept_replaced_or_moved(self) -> None:
        sandbox = testing.Sandbox(build())
        job = sandbox.enqueue("count", {"page": 1}, unique_key="a", delay=60)
        self.assertIs(sandbox.enqueue("count", {"page": 2}, unique_key="a"), job)
        self.assertEqual((job.payload, job.state), ({"page": 1}, "scheduled"))
        sandbox.enqueue("count", {"page": 2}, unique_key="a", on_conflict="replace")
        self.assertEqual((job.payload, job.state), ({"page": 2}, "scheduled"))
        sandbox.enqueue("count", {"page": 3}, unique_key="a", on_conflict="move", delay=30)
        self.assertEqual((job.payload, job.run_at - sandbox.now), ({"page": 2}, timedelta(seconds=30)))
        testing.assert_enqueued(sandbox, "count", {"page": 2}, delay=30)
        sandbox.enqueue("count", {"page": 3}, unique_key="a", on_conflict="move")
        sandbox.drain()
        self.assertEqual(job.result, {"words": 20})
        self.assertIsNot(sandbox.enqueue("count", {"page": 3}, unique_key="a", on_conflict="move"), job)
        with self.assertRaisesRegex(ValueError, "on_conflict must be keep, replace or move, not 'lose'"):
            sandbox.enqueue("count", on_conflict="lose")  # type: ignore[arg-type]

    def test_a_job_that_runs_is_not_replaced(self) -> None:
        host = build()

        @host.on("again")
        def again(round: int) -> int:
            enqueue(None, "again", {"round": round + 1}, unique_key="a", on_conflict="replace")
            return round

        sandbox = testing.Sandbox(host)
        job = sandbox.enqueue("again", {"round": 1}, unique_key="a")
        sandbox.drain()
        self.assertEqual((job.result, job.payload, len(sandbox.jobs)), (1, {"round": 1}, 1))

    def test_a_payload_that_contains_another_is_found(self) -> None:
        jobs = [NewJob("mail", {"to": [{"name": "ada", "copy": True}, {"name": "bob"}], "n": 1}, steps=["a", "b"])]
        to_ada = {"to": [{"copy": True, "name": "ada"}]}
        parts: List[Any] = [{}, {"to": [{"name": "bob"}]}, {"to": [], "n": 1.0}, to_ada]
        for part in parts:
            testing.assert_enqueued(jobs, "mail", part)
        others: List[Any] = [{"to": [{"name": "eve"}]}, {"to": {}}, {"n": True}, {"n": None}, 5]
        for part in others:
            with self.assertRaises(AssertionError, msg=part):
                testing.assert_enqueued(jobs, "mail", part)
        with self.assertRaises(AssertionError):
            testing.assert_enqueued(jobs, "mail", steps=["a"])
        testing.assert_enqueued([NewJob("count", 5)], "count")

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
            # why: it is what the test ends
            job.sleep(3600)

        @host.on("waits")
        async def waits(job: AsyncJob) -> None:
            try:
                # why: it is what the test ends
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
        with self.assertRaisesRegex(RuntimeError, r"job 1 \(again\) has run 50 times and would be run"):
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
        with self.assertRaisesRegex(ValueError, "the sandbox does not support 'after'"):
            sandbox.enqueue("count", after=[1])


if __name__ == "__main__":
    unittest.main()
