"""Tests of functions without a worker and without a database.

    ran = testing.run(host, "send_mail", {"to": "ada@example.org"})
    assert ran.result == {"sent_to": "ada@example.org"}

    with testing.Sandbox(host) as sandbox:
        place_order(connection)                   # calls enqueue(connection, …): the job goes to the sandbox
        sandbox.drain()
        assert [job.state for job in sandbox.jobs] == ["completed"]
"""

from __future__ import annotations

import asyncio
import collections.abc
import dataclasses
import json
import tempfile
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Coroutine,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

from . import _json, _sql
from ._enqueue import capture
from ._function import Registered
from ._host import Host
from ._job import AsyncJob, BaseJob, Ended, Job
from ._new_job import OPTIONS, NewJob, Options, new_job
from ._run import answer, run_async, run_batch_async, run_work

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Ran",
    "Sandbox",
    "SandboxJob",
    "aassert_enqueued",
    "arun",
    "arun_many",
    "assert_enqueued",
    "run",
    "run_many",
]


@dataclasses.dataclass
class Ran:
    """The effects of one run of a function."""

    outcome: str = ""
    """``done``, ``fail``, ``snooze``, ``wait``, ``skip``, ``cancelled`` or ``settled``."""
    result: Any = None
    """The result, as JSON that was stored and read again; with the outcome ``settled``, that of ``complete_in``."""
    error: Optional[str] = None
    code: Optional[str] = None
    retryable: bool = True
    retry_after: Optional[float] = None
    alone: bool = False
    """Whether the job is retried in a call of its own, because an exception failed the whole batch."""
    delay: Optional[float] = None
    token: Optional[str] = None
    at_most: Optional[float] = None
    reason: Optional[str] = None
    progress: List[Tuple[float, Optional[str]]] = dataclasses.field(default_factory=list)
    logs: List[str] = dataclasses.field(default_factory=list)
    steps: Dict[str, Any] = dataclasses.field(default_factory=dict)
    """The steps that are done, with their outputs, including those that were done before."""
    enqueued: List[NewJob] = dataclasses.field(default_factory=list)
    spawned: List[NewJob] = dataclasses.field(default_factory=list)


class _Recorder:
    """Takes the place of a connection."""

    def __init__(self, steps: Mapping[str, Any], children: Sequence[Ended], dependencies: Sequence[Ended]) -> None:
        self.ran = Ran(steps=dict(steps))
        self.enqueue: Callable[[NewJob], int] = lambda job: len(self.ran.enqueued)
        self._families = {"children": children, "dependencies": dependencies}

    def send(self, message: Dict[str, Any]) -> None:
        _json.line(message)
        if message["type"] == "log":
            self.ran.logs.append(message["message"])

    def progress(self, message: Dict[str, Any]) -> None:
        _json.line(message)
        self.ran.progress.append((message["percent"], message.get("note")))

    def call(self, message: Dict[str, Any], answered: Callable[[Dict[str, Any]], None]) -> None:
        message = json.loads(_json.line(message))  # as the worker would see it
        kind, value = message["type"], None  # type: str, Any
        if kind == "step.get":
            is_done = message["name"] in self.ran.steps
            value = {"done": is_done, "output": self.ran.steps.get(message["name"])}
        elif kind == "step.put":
            if "error" not in message:
                self.ran.steps[message["name"]] = message.get("output")
        elif kind == "spawn":
            self.ran.spawned.extend(_new(job) for job in message["jobs"])
        elif kind == "enqueue":
            value = []
            for job in message["jobs"]:
                self.ran.enqueued.append(_new(job))
                value.append(str(self.enqueue(_new(job))))
        else:
            value = [{**one._asdict(), "id": str(one.id)} for one in self._families[kind]]
        answered({"value": value})

    def takes_completion(self, job: BaseJob, result: Any) -> bool:
        self.ran.result = json.loads(_json.text(result))
        return True

    def settle(self, job: BaseJob, result: Any, error: Optional[BaseException]) -> None:
        if job._is_answered:
            return
        job._is_answered = True
        message = json.loads(answer(job, result, error))
        self.ran.outcome = message.pop("type")
        if self.ran.outcome != "settled":
            self.ran.result = None  # the transaction of complete_in was rolled back
        del message["id"], message["claim"]
        for name, value in message.items():
            setattr(self.ran, name, value)


def _new(job: Dict[str, Any]) -> NewJob:
    fields = dict(job)
    return NewJob(fields.pop("command"), fields.pop("payload", {}), **fields)


def _function(host: Host, command: str) -> Registered:
    try:
        return host.functions[command]
    except KeyError:
        known = ", ".join(sorted(host.functions)) or "none"
        raise LookupError(f"the host has no function for {command!r}; its commands: {known}") from None


_FIELDS = frozenset(
    "id queue attempt max_attempts headers traceparent timeout deadline step context answer".split()
    + "steps children dependencies cancelled".split()
)


class _Run:
    """Jobs of one command, with a recorder for each."""

    def __init__(self, host: Host, command: str, payloads: Sequence[object], given: Dict[str, Any]) -> None:
        unknown = sorted(given.keys() - _FIELDS)
        if unknown:
            raise TypeError(f"a job has no field {unknown[0]!r}; a test can give it {', '.join(sorted(_FIELDS))}")
        if "id" in given:
            given["id"] = str(given["id"])
        self.host = host
        self.add: Optional[Callable[[NewJob], int]] = None
        self.cancelled: Optional[str] = given.pop("cancelled", None)
        self.function = _function(host, command)
        kind = AsyncJob if self.function.is_async else Job
        families = {name: given.pop(name, None) or () for name in ("children", "dependencies")}
        steps = given.pop("steps", None) or {}
        self.jobs: List[BaseJob] = []
        self.recorders: List[_Recorder] = []
        for number, payload in enumerate(payloads):
            recorder = _Recorder(steps, **families)
            message = {"id": str(number + 1), "claim": "1", "command": command, "attempt": 1, **given}
            message["payload"] = json.loads(_json.text(payload))
            self.recorders.append(recorder)
            self.jobs.append(kind(message, recorder))

    def finish(self, folder: str) -> Coroutine[Any, Any, List[Ran]]:
        for job in self.jobs:
            job._message["workdir"] = f"{folder}/{job._key}"
        return self._finish()

    async def _finish(self) -> List[Ran]:
        # what the function enqueues by itself, and not through the job, is seen too; of a batch, by the first job
        enqueued = self.recorders[0].ran.enqueued if self.recorders else []

        def seen(job: NewJob) -> int:
            enqueued.append(job)
            add = self.add or before
            return len(enqueued) if add is None else add(job)

        before = capture(seen)
        try:
            if self.function.is_async:
                await self._run_async()
            else:
                for job in self.jobs:
                    if self.cancelled is not None:
                        job._stop(self.cancelled)
                run_work((self.function, self.jobs if self.function.most is not None else self.jobs[0]))
        finally:
            capture(before)
        return [recorder.ran for recorder in self.recorders]

    async def _run_async(self) -> None:
        if self.function.most is not None:
            task = asyncio.ensure_future(run_batch_async(self.function, self.jobs))
        else:
            task = asyncio.ensure_future(run_async(self.function, self.jobs[0]))
        if self.cancelled is not None:
            await asyncio.sleep(0)  # up to its first wait
            for job in self.jobs:
                job._stop(self.cancelled)
            task.cancel()
        await task


def run(
    host: Host,
    command: str,
    payload: object = {},  # noqa: B006
    *,
    steps: Optional[Mapping[str, Any]] = None,
    children: Optional[Sequence[Ended]] = None,
    dependencies: Optional[Sequence[Ended]] = None,
    cancelled: Optional[str] = None,
    **job: Any,
) -> Ran:
    """Run the function of a command on a payload, in this thread.

    ``steps`` are those that are done already; ``job`` are fields of the job, such as ``attempt=3``, ``answer=…``,
    ``headers=…`` or ``context=…``. With ``cancelled="timeout"`` (or ``"cancelled"``, ``"lost"``, ``"shutdown"``) the
    job should stop: an async function stops at its first wait, a plain one when it next checks.
    """
    given = {"steps": steps, "children": children, "dependencies": dependencies, "cancelled": cancelled, **job}
    return _run_now(_Run(host, command, [payload], given))[0]


def run_many(host: Host, command: str, payloads: Sequence[object], **job: Any) -> List[Ran]:
    """Run the function of a batch on jobs with these payloads."""
    return _run_now(_Run(host, command, payloads, job))


async def arun(
    host: Host,
    command: str,
    payload: object = {},  # noqa: B006
    *,
    steps: Optional[Mapping[str, Any]] = None,
    children: Optional[Sequence[Ended]] = None,
    dependencies: Optional[Sequence[Ended]] = None,
    cancelled: Optional[str] = None,
    **job: Any,
) -> Ran:
    """The same as ``run``, for a test that is asynchronous. The host's ``lifespan`` is the test's own."""
    given = {"steps": steps, "children": children, "dependencies": dependencies, "cancelled": cancelled, **job}
    with tempfile.TemporaryDirectory(prefix="bugle-") as folder:
        return (await _Run(host, command, [payload], given).finish(folder))[0]


async def arun_many(host: Host, command: str, payloads: Sequence[object], **job: Any) -> List[Ran]:
    """The same as ``run_many``, for a test that is asynchronous."""
    with tempfile.TemporaryDirectory(prefix="bugle-") as folder:
        return await _Run(host, command, payloads, job).finish(folder)


def _run_in(loop: asyncio.AbstractEventLoop, jobs: _Run) -> List[Ran]:
    if not jobs.function.is_async:
        return _run_now(jobs)
    with tempfile.TemporaryDirectory(prefix="bugle-") as folder:
        return loop.run_until_complete(jobs.finish(folder))


def _run_now(jobs: _Run) -> List[Ran]:
    with tempfile.TemporaryDirectory(prefix="bugle-") as folder:
        if jobs.function.is_async:
            return asyncio.run(_within(jobs.host, jobs.finish(folder)))
        # a plain function runs as in a thread: not inside a loop
        coroutine = jobs.finish(folder)
        try:
            coroutine.send(None)
        except StopIteration as end:
            ran: List[Ran] = end.value
            return ran
        raise RuntimeError("a plain function does not wait")


async def _within(host: Host, work: Coroutine[Any, Any, List[Ran]]) -> List[Ran]:
    if host._lifespan is None:
        return await work
    async with host._lifespan():
        return await work


def _contains(whole: Any, part: Any) -> bool:
    """Whether one JSON value contains another, as the operator ``@>`` of jsonb has it."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(name in whole and _contains(whole[name], value) for name, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_contains(one, value) for one in whole) for value in part)
    return isinstance(whole, bool) == isinstance(part, bool) and bool(whole == part)


def _fits(wanted: NewJob, found: NewJob) -> bool:
    if wanted.command != found.command or not (wanted.payload == {} or _contains(found.payload, wanted.payload)):
        return False
    for name, value in wanted.options.items():
        has = found.options.get(name)
        if not (_contains(has, value) if name == "headers" else has == value):
            return False
    return True


def assert_enqueued(
    where: Any,
    command: str,
    payload: object = {},  # noqa: B006
    **options: Unpack[Options],
) -> NewJob:
    """The first job of this command with these options, whose payload contains this one, as ``@>`` of jsonb has it.

    ``where`` is a sandbox, what ``run`` returned, or a list of jobs; or a connection, in whose transaction jobs were
    enqueued: there it finds jobs that have not ended. If there is none, the AssertionError says what is enqueued.
    """
    wanted = _as_stored(NewJob(command, payload, **options))
    if isinstance(where, Sandbox):
        jobs = [one.job for one in where.jobs]
    elif isinstance(where, Ran):
        jobs = [*where.enqueued, *where.spawned]
    elif hasattr(where, "execute") or hasattr(where, "cursor") or not isinstance(where, collections.abc.Iterable):
        statement, parameters = _stored(wanted)
        return _found(wanted, _sql.query(where, statement, parameters))
    else:
        jobs = [one.job if isinstance(one, SandboxJob) else _as_stored(one) for one in where]
    return _first(wanted, [(job, _fits(wanted, job)) for job in jobs])


async def aassert_enqueued(
    connection: Any,
    command: str,
    payload: object = {},  # noqa: B006
    **options: Unpack[Options],
) -> NewJob:
    """The same as ``assert_enqueued`` with an asynchronous connection."""
    wanted = _as_stored(NewJob(command, payload, **options))
    statement, parameters = _stored(wanted)
    return _found(wanted, await _sql.aquery(connection, statement, parameters))


def _as_stored(job: NewJob) -> NewJob:
    return _new(json.loads(job.to_json()))


def _stored(wanted: NewJob) -> Tuple[str, List[Optional[str]]]:
    """A statement for all jobs that have not ended, and whether they are wanted. Postgres compares, because 60 seconds
    are a minute."""
    conditions, parameters = ["j.command = w.command"], [wanted.to_json()]
    if wanted.payload != {}:
        conditions.append("coalesce(j.payload, 'null') @> coalesce(w.payload, 'null')")
    for name, value in wanted.options.items():
        if name in ("after", "on_conflict"):
            raise ValueError(f"what a job was enqueued with as {name!r} is not stored with it")
        if name == "headers":
            conditions.append("j.headers @> w.headers")
        elif name == "delay":
            delay = "cast(cast({} as text) as interval)"
            conditions.append(f"abs(extract(epoch from j.run_at - j.created_at - {delay})) <= 1")
            parameters.append(str(value))
        else:
            conditions.append(f"j.{name} is not distinct from w.{name}")
    # the parameters of the conditions come first in the text
    statement = (
        f"select cast(jsonb_build_object('fits', {' and '.join(conditions)}, 'job', to_jsonb(j)) as text) "
        "from jsonb_populate_record(cast(null as bugle.jobs), cast(cast({} as text) as jsonb)) w, bugle.jobs j "
        "where j.finished_at is null order by j.id"
    )
    return statement, [*parameters[1:], parameters[0]]


def _found(wanted: NewJob, rows: Iterable[Any]) -> NewJob:
    jobs = []
    for row in map(json.loads, rows):
        columns = row["job"]
        options = {name: columns[name] for name in OPTIONS if columns.get(name) is not None}
        jobs.append((NewJob(columns["command"], columns["payload"], **options), row["fits"]))
    return _first(wanted, jobs)


def _first(wanted: NewJob, jobs: Sequence[Tuple[NewJob, bool]]) -> NewJob:
    for job, fits in jobs:
        if fits:
            return job
    # those that are meant most likely come first
    likely = sorted((job for job, _ in jobs), key=lambda job: job.command != wanted.command)
    told = "".join(f"\n  {job!r}" for job in likely[:10]) or " nothing"
    more = f"\n  and {len(likely) - 10} more" if len(likely) > 10 else ""
    raise AssertionError(f"{wanted!r} is not enqueued; enqueued are:{told}{more}")


@dataclasses.dataclass
class SandboxJob:
    """A job in a sandbox. It has the columns of ``bugle.jobs`` that matter to a test."""

    id: int
    job: NewJob
    state: str
    run_at: datetime
    attempt: int = 0
    result: Any = None
    error: Optional[str] = None
    code: Optional[str] = None
    runs: List[Ran] = dataclasses.field(default_factory=list)
    parent: Optional[int] = None
    step: int = 0
    context: Dict[str, Any] = dataclasses.field(default_factory=dict)
    answer: Any = None
    steps: Dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def command(self) -> str:
        """Its command."""
        return self.job.command

    @property
    def payload(self) -> Any:
        """Its payload."""
        return self.job.payload


_LIVE = ("ready", "scheduled", "retrying", "waiting", "running")
_DUE = ("ready", "scheduled", "retrying")
_NOT_HERE = ("after",)


class Sandbox:
    """A queue in memory: what is enqueued while it is entered goes here, and ``drain`` runs it.

    Its clock stands still; ``advance`` moves it. It supports states, retries (5 seconds later, or as the job says),
    snoozing, answers, chains, children, unique and idempotency keys, and what follows a job (``on_success``,
    ``on_failure``). It does not support limits, order, deadlines or policies: for those, test with a database and
    ``bugle worker --until-empty``. A job ``after`` others is a ValueError.
    """

    def __init__(self, host: Host, *, max_attempts: int = 16, now: Optional[datetime] = None) -> None:
        self.host = host
        self.max_attempts = max_attempts
        self.now = now or datetime.now(timezone.utc)
        self.jobs: List[SandboxJob] = []
        self._before: Optional[Callable[[NewJob], int]] = None

    def __enter__(self) -> Sandbox:
        self._before = capture(self._add)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        capture(self._before)

    def enqueue(
        self,
        command: Union[str, NewJob],
        payload: object = {},  # noqa: B006
        **options: Unpack[Options],
    ) -> SandboxJob:
        """Enqueue a job."""
        return self.job(self._add(new_job(command, payload, options)))

    def job(self, id: int) -> SandboxJob:
        """The job with this id."""
        return self.jobs[id - 1]

    def advance(self, by: Union[timedelta, float]) -> None:
        """Move the clock."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)

    def drain(self, *, until_empty: bool = False, most: int = 10_000) -> List[SandboxJob]:
        """Run what is due, and what that enqueues, until nothing is due. Returns the jobs that ran.

        Jobs of commands that the host does not have are left, as a worker leaves them. With ``until_empty`` the clock
        is moved to the next job that is due later, until none is left. Plain functions run in this thread, async ones
        all in one event loop, inside the ``lifespan`` of the host. More than ``most`` runs are a RuntimeError:
        something enqueues or snoozes without end.
        """
        is_async = self.host._lifespan is not None or any(one.is_async for one in self.host.functions.values())
        if not is_async:
            return self._drain(until_empty, most, _run_now)
        loop = asyncio.new_event_loop()
        try:
            lifespan = self.host._lifespan() if self.host._lifespan is not None else None
            if lifespan is not None:
                loop.run_until_complete(lifespan.__aenter__())
            try:
                return self._drain(until_empty, most, lambda jobs: _run_in(loop, jobs))
            finally:
                if lifespan is not None:
                    loop.run_until_complete(lifespan.__aexit__(None, None, None))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    async def adrain(self, *, until_empty: bool = False, most: int = 10_000) -> List[SandboxJob]:
        """The same as ``drain``, for a test that is asynchronous: in its event loop. Plain functions run in threads."""
        if self.host._lifespan is None:
            return await self._adrain(until_empty, most)
        async with self.host._lifespan():
            return await self._adrain(until_empty, most)

    def _drain(self, until_empty: bool, most: int, run: Callable[[_Run], List[Ran]]) -> List[SandboxJob]:
        ran: Dict[int, SandboxJob] = {}
        while True:
            jobs = self._next(until_empty)
            if not jobs:
                return list(ran.values())
            most = self._spend(most, jobs)
            prepared = self._prepare(jobs)
            self._finish(jobs, run(prepared))
            ran.update((job.id, job) for job in jobs)

    async def _adrain(self, until_empty: bool, most: int) -> List[SandboxJob]:
        ran: Dict[int, SandboxJob] = {}
        while True:
            jobs = self._next(until_empty)
            if not jobs:
                return list(ran.values())
            most = self._spend(most, jobs)
            prepared = self._prepare(jobs)
            if prepared.function.is_async:
                with tempfile.TemporaryDirectory(prefix="bugle-") as folder:
                    done = await prepared.finish(folder)
            else:
                done = await asyncio.get_running_loop().run_in_executor(None, _run_now, prepared)
            self._finish(jobs, done)
            ran.update((job.id, job) for job in jobs)

    def _spend(self, most: int, jobs: List[SandboxJob]) -> int:
        if most < len(jobs):
            last = jobs[0]
            raise RuntimeError(
                f"drain does not end: job {last.id} ({last.command}) has run {len(last.runs)} times and would be run "
                "again; allow more runs with most=…"
            )
        return most - len(jobs)

    def resolve(self, id: int, answer: Any) -> None:
        """Answer a job that waits, so that it runs again and finds the answer."""
        job = self.job(id)
        if job.state != "waiting":
            raise ValueError(f"job {id} does not wait for an answer: it is {job.state}")
        job.answer, job.state, job.run_at = answer, "ready", self.now

    def _add(self, new: NewJob, parent: Optional[int] = None) -> int:
        new = _new(json.loads(new.to_json()))  # as the database would hold it
        for name in _NOT_HERE:
            if name in new.options:
                raise ValueError(f"the sandbox does not support {name!r}: test with a database")
        if new.options.get("on_conflict", "keep") not in ("keep", "replace", "move"):
            raise ValueError(f"on_conflict must be keep, replace or move, not {new.options['on_conflict']!r}")
        repeated = new.options.get("idempotency_key")
        for other in self.jobs if repeated is not None else ():
            if (other.command, other.job.options.get("idempotency_key")) == (new.command, repeated):
                return other.id
        key = new.options.get("unique_key")
        for other in self.jobs:
            is_same = other.command == new.command and key is not None and other.job.options.get("unique_key") == key
            if is_same and other.state in _LIVE:
                self._meet(other, new)
                return other.id
        run_at = self._time_of(new)
        state = "scheduled" if run_at > self.now else "ready"
        self.jobs.append(SandboxJob(len(self.jobs) + 1, new, state, run_at, parent=parent))
        return len(self.jobs)

    def _time_of(self, new: NewJob) -> datetime:
        if "run_at" in new.options:
            return datetime.fromisoformat(str(new.options["run_at"]).replace("Z", "+00:00"))
        return self.now + _interval(new.options.get("delay", "0 seconds"))

    def _meet(self, job: SandboxJob, new: NewJob) -> None:
        """Do what ``on_conflict`` says about the job that has the unique key. One that was started stays as it is."""
        how = new.options.get("on_conflict")
        if job.state in ("running", "waiting"):
            return
        if how == "replace":
            job.job.payload = new.payload
        elif how == "move":
            times = ("run_at", "delay")
            kept = {name: value for name, value in job.job.options.items() if name not in times}
            job.job.options = {**kept, **{name: new.options[name] for name in times if name in new.options}}
            job.run_at = self._time_of(new)
            if job.run_at <= self.now:
                job.state = "ready"
            elif job.state == "ready":
                job.state = "scheduled"

    def _next(self, until_empty: bool) -> List[SandboxJob]:
        """The job that is to run; of a command that takes batches, all that are due."""
        due = [
            job
            for job in self.jobs
            if job.state in _DUE
            and (until_empty or job.run_at <= self.now)
            and _next_command(job) in self.host.functions
        ]
        if not due:
            return []
        due.sort(key=lambda job: (max(job.run_at, self.now), job.job.options.get("priority", 0), job.id))
        first = due[0]
        self.now = max(self.now, first.run_at)
        function = self.host.functions[_next_command(first)]
        if function.most is None or not _shares_calls(first):
            return [first]
        same = [one for one in due if one.command == first.command and _shares_calls(one)]
        return [one for one in same if one.run_at <= self.now][: function.most]

    def _prepare(self, jobs: List[SandboxJob]) -> _Run:
        first = self._prepare_one(jobs[0])
        for other in jobs[1:]:
            one = self._prepare_one(other)
            first.jobs += one.jobs
            first.recorders += one.recorders
        return first

    def _prepare_one(self, job: SandboxJob) -> _Run:
        chain = job.job.options.get("steps")
        given = {"id": str(job.id), "answer": job.answer}
        payload = job.payload
        if chain:
            payload = {**job.payload, **job.context}
            step = {"chain": job.command, "position": job.step + 1, "steps": len(chain), "attempt": 1}
            given.update(context=job.context, step=step)
        children = [
            Ended(one.id, None, one.state, None, one.result, one.error) for one in self.jobs if one.parent == job.id
        ]
        given["max_attempts"] = job.job.options.get("max_attempts", self.max_attempts)
        given.update(attempt=job.attempt + 1, children=children, steps=job.steps)
        given["headers"] = job.job.options.get("headers")
        run = _Run(self.host, _next_command(job), [payload], given)
        job.attempt, job.state = job.attempt + 1, "running"
        for recorder in run.recorders:
            recorder.enqueue = self._add
        run.add = self._add
        return run

    def _finish(self, jobs: List[SandboxJob], done: List[Ran]) -> None:
        for job, ran in zip(jobs, done):
            job.runs.append(ran)
            job.steps = ran.steps
            self._end(job, ran, job.job.options.get("steps"))

    def _end(self, job: SandboxJob, ran: Ran, chain: Optional[Sequence[str]]) -> None:
        job.answer = None
        if ran.outcome in ("done", "skip") or (ran.outcome == "settled" and not ran.spawned):
            if chain:
                if ran.outcome != "skip" and ran.result is not None:
                    output = ran.result if isinstance(ran.result, dict) else {chain[job.step]: ran.result}
                    job.context = {**job.context, **output}
                job.step += 1
            if chain and job.step < len(chain):
                job.state, job.attempt = "ready", job.attempt - 1
            else:
                job.result = job.context if chain else ran.result
                self._ended(job, "completed")
        elif ran.outcome == "fail":
            job.error, job.code = ran.error, ran.code
            if not ran.retryable or job.attempt >= job.job.options.get("max_attempts", self.max_attempts):
                self._ended(job, "failed")
            else:
                delay = timedelta(seconds=5)
                if ran.retry_after is not None:
                    delay = timedelta(seconds=ran.retry_after)
                elif "retry_delay" in job.job.options:
                    delay = _interval(job.job.options["retry_delay"])
                job.state, job.run_at = "retrying", self.now + delay
        elif ran.outcome == "snooze":
            job.attempt -= 1
            job.state, job.run_at = "scheduled", self.now + timedelta(seconds=ran.delay or 0)
        elif ran.outcome == "cancelled":
            self._ended(job, "cancelled")
        else:  # for an answer, or for its children
            job.attempt -= 1
            job.state = "waiting"
            for child in ran.spawned:
                self._add(child, parent=job.id)

    def _ended(self, job: SandboxJob, state: str) -> None:
        job.state = state
        follower = job.job.options.get({"completed": "on_success", "failed": "on_failure"}.get(state, ""))
        if follower is not None:
            queue = job.job.options.get("queue", "default")
            told = {"job": job.id, "state": state, "reason": None, "command": job.command, "queue": queue}
            self._add(NewJob(str(follower), {**told, "result": job.result, "error": job.error}, queue=queue))
        siblings = [one for one in self.jobs if one.parent == job.parent]
        if job.parent is not None and not any(one.state in _LIVE for one in siblings):
            parent = self.job(job.parent)
            parent.state, parent.run_at = "ready", self.now


def _next_command(job: SandboxJob) -> str:
    """The command that a job runs next: of a chain, that of its step."""
    chain = job.job.options.get("steps")
    return chain[job.step] if chain else job.command


def _shares_calls(job: SandboxJob) -> bool:
    """Whether a job may be in one call with others."""
    return not job.job.options.get("steps") and not (job.runs and job.runs[-1].alone)


def _interval(text: str) -> timedelta:
    amount, _, unit = text.partition(" ")
    try:
        return timedelta(**{unit.rstrip("s") + "s": float(amount)})
    except (ValueError, TypeError):
        raise ValueError(f"the sandbox supports timedeltas and seconds, not {text!r}") from None
