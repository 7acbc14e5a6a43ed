"""A job while it runs: what it is, and what its function can tell the worker and ask it."""

from __future__ import annotations

import asyncio
import queue
import threading
from datetime import datetime
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Dict,
    Generator,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from . import _json, _sql
from ._decode import _datetime, decoder
from ._new_job import NewJob, Options, messages, new_job
from ._outcomes import CallFailed, Cancelled, ClaimLost, Fail, Outcome, optional_text

if TYPE_CHECKING:
    from typing_extensions import Literal, Protocol, Unpack

    class Channel(Protocol):
        """The receiver of the messages of a job: the worker, or a test."""

        def send(self, message: Dict[str, Any]) -> None: ...

        def progress(self, message: Dict[str, Any]) -> None: ...

        def call(self, message: Dict[str, Any], answered: Callable[[Dict[str, Any]], None]) -> None: ...

        def settle(self, job: BaseJob, result: Any, error: Optional[BaseException]) -> None: ...

        def takes_completion(self, job: BaseJob, result: Any) -> bool:
            """Note that a job is completed in a transaction. True in a test: then no SQL is run."""


T = TypeVar("T")


class Chain(NamedTuple):
    """The place of a job in its chain."""

    chain: str
    position: int
    steps: int
    attempt: int


class Ended(NamedTuple):
    """A job that another one waited for, and how it ended."""

    id: int
    name: Optional[str]
    state: str
    reason: Optional[str]
    result: Any
    error: Optional[str]

    @property
    def is_completed(self) -> bool:
        """Whether it has a result."""
        return self.state == "completed"


class Sent:
    """Stands for a message that is on its way. There is nothing to wait for; in async functions, await is allowed."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_SENT = Sent()

_COMPLETE = (
    "select verdict from bugle.complete(cast(cast({} as text) as bigint), cast(cast({} as text) as uuid), "
    "array[row(cast(cast({} as text) as bigint), cast(cast({} as text) as bigint), cast(cast({} as text) as jsonb))"
    "::bugle.finished_job])"
)
_FINISH_STEP = (
    "select verdict from bugle.finish_step(cast(cast({} as text) as bigint), cast(cast({} as text) as uuid), "
    "row(cast(cast({} as text) as bigint), cast(cast({} as text) as bigint))::bugle.held_job, "
    "cast(cast({} as text) as integer), cast(cast({} as text) as integer), cast(cast({} as text) as jsonb), false)"
)


class BaseJob:
    """The base class of ``Job`` and ``AsyncJob``."""

    __slots__ = (
        "_message",
        "_channel",
        "_key",
        "_claim",
        "_cancelled",
        "_wake",
        "_is_settled",
        "_is_answered",
        "_is_to_be_alone",
        "_task",
    )

    def __init__(self, message: Dict[str, Any], channel: Channel) -> None:
        self._message = message
        self._channel = channel
        self._key: str = message["id"]
        self._claim: str = message["claim"]
        self._cancelled: Optional[str] = None
        self._wake: Optional[threading.Event] = None
        self._is_settled = False
        self._is_answered = False
        self._is_to_be_alone = False
        self._task: Optional[asyncio.Task[None]] = None

    @property
    def id(self) -> int:
        """The job's id in ``bugle.jobs``: a good key to make work safe to repeat."""
        return int(self._key)

    @property
    def command(self) -> str:
        """The command."""
        return str(self._message["command"])

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return str(self._message.get("queue", "default"))

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return int(self._message.get("attempt", 1))

    @property
    def max_attempts(self) -> Optional[int]:
        """The number of attempts before the job fails for good, if that is limited."""
        return self._message.get("max_attempts")

    @property
    def payload(self) -> Any:
        """The payload as JSON was decoded; in a batch with ``payload=…``, as that type."""
        return self._message.get("payload")

    def payload_as(self, kind: Type[T]) -> T:
        """The payload as a dataclass, a pydantic model or another type."""
        decoded: T = decoder(kind)(self.payload, "payload")
        return decoded

    @property
    def headers(self) -> Dict[str, Any]:
        """The headers it was enqueued with."""
        return self._message.get("headers") or {}

    @property
    def traceparent(self) -> Optional[str]:
        """The trace it belongs to."""
        return self._message.get("traceparent")

    @property
    def timeout(self) -> Optional[float]:
        """The time limit of this attempt, in seconds."""
        return self._message.get("timeout")

    @property
    def deadline(self) -> Optional[datetime]:
        """The time at which the limit of this attempt ends."""
        text = self._message.get("deadline")
        return None if text is None else _datetime(text)

    @property
    def chain(self) -> Optional[Chain]:
        """The place of the job in its chain, if it has one."""
        step = self._message.get("step")
        return step and Chain(step["chain"], step["position"], step["steps"], step["attempt"])

    @property
    def context(self) -> Dict[str, Any]:
        """In a chain, the outputs of the steps before this one."""
        return self._message.get("context") or {}

    @property
    def answer(self) -> Any:
        """The answer with which the job was resumed, if it had waited for one."""
        return self._message.get("answer")

    @property
    def cancelled(self) -> Optional[str]:
        """The reason why the job should stop (``timeout``, ``cancelled``, ``lost``, ``shutdown``), or None."""
        return self._cancelled

    def workspace(self) -> Path:
        """A folder for this attempt, which is created by this call and removed by the worker."""
        path = Path(self._message["workdir"])
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def progress(self, percent: float, note: Optional[str] = None) -> Sent:
        """Report progress, shown in ``bugle.running_jobs``. Raises ``Cancelled`` if the job should stop."""
        self.check()
        if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
            raise ValueError(f"progress takes a number from 0 to 100, and then a note, not {percent!r:.100}")
        optional_text(note, "the note")
        message = {"type": "progress", "id": self._key, "percent": percent}
        self._channel.progress(message if note is None else {**message, "note": note})
        return _SENT

    def log(self, message: object, level: Literal["debug", "info", "warn", "error"] = "info") -> Sent:
        """Write a line to the worker's log, with the host's name and the job."""
        self._channel.send({"type": "log", "id": self._key, "level": level, "message": str(message)})
        return _SENT

    def check(self) -> None:
        """Raise ``Cancelled`` if the job should stop."""
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)

    def done(self, result: Any = None) -> None:
        """In a batch: complete this job, while others still run."""
        self._channel.settle(self, result, None)

    def fail(self, error: BaseException) -> None:
        """In a batch: give this job another outcome, such as ``Fail(…)`` or any exception."""
        self._channel.settle(self, None, error)

    def _stop(self, reason: str) -> None:
        self._cancelled = reason
        if self._wake is not None:
            self._wake.set()

    def _spawned(self) -> None:
        self._is_settled = True

    def _takes_completion(self, result: Any) -> bool:
        self._is_settled = self._channel.takes_completion(self, result)
        return self._is_settled

    def _completion(self, result: Any) -> Tuple[str, List[Optional[str]]]:
        step = self._message.get("step")
        stored = None if result is None else _json.text(result)
        session = [self._message["worker_id"], self._message["nonce"], self._key, self._message["claim"]]
        if step is None:
            return _COMPLETE, [*session, stored]
        return _FINISH_STEP, [*session, str(step["position"]), str(step["attempt"]), stored]

    def _completed(self, verdicts: List[Any]) -> None:
        for verdict in verdicts:
            if verdict is not None:
                raise ClaimLost(verdict)
        self._is_settled = True


def _value(reply: Dict[str, Any]) -> Any:
    if reply.get("error") is not None:
        raise CallFailed(reply["error"], reply.get("code") or "call_failed")
    return reply.get("value")


def _ended(value: Any) -> List[Ended]:
    return [
        Ended(int(one["id"]), one.get("name"), one["state"], one.get("reason"), one.get("result"), one.get("error"))
        for one in value or ()
    ]


def _failed(error: Exception) -> Dict[str, Any]:
    if isinstance(error, Fail):
        return {"error": error.error, "code": error.code}
    return {"error": f"{type(error).__name__}: {error}", "code": type(error).__name__}


def _has_failed(error: Exception) -> bool:
    """A step that snoozes, for example, has not."""
    return isinstance(error, Fail) or not isinstance(error, Outcome)


class Job(BaseJob):
    """A job for a plain function, which runs in a thread."""

    __slots__ = ()

    def _call(self, message: Dict[str, Any]) -> Any:
        answers: queue.SimpleQueue[Dict[str, Any]] = queue.SimpleQueue()
        self._channel.call(message, answers.put)
        return _value(answers.get())

    def sleep(self, duration: float) -> None:
        """Sleep; raise ``Cancelled`` as soon as the job should stop."""
        if self._wake is None:
            self._wake = threading.Event()
        if self._cancelled is None:
            self._wake.wait(duration)
        self.check()

    def step(self, name: str, work: Callable[[], T]) -> T:
        """Do something once per job, even if the job is retried: the output is stored, and returned the next time."""
        self.check()
        stored = self._call({"type": "step.get", "id": self._key, "name": name})
        if stored["done"]:
            output: T = stored.get("output")
            return output
        try:
            output = work()
        except Exception as error:
            if _has_failed(error):
                self._call({"type": "step.put", "id": self._key, "name": name, **_failed(error)})
            raise
        self._call({"type": "step.put", "id": self._key, "name": name, "output": output})
        return output

    def spawn(self, jobs: Iterable[NewJob]) -> None:
        """Enqueue children, and return from the function: the job runs again when they have ended."""
        self._call({"type": "spawn", "id": self._key, "jobs": messages(list(jobs))})
        self._spawned()

    def children(self) -> List[Ended]:
        """The children that this job has spawned, and how they ended. Empty in the first run."""
        return _ended(self._call({"type": "children", "id": self._key}))

    def dependencies(self) -> List[Ended]:
        """The jobs that this one waited for."""
        return _ended(self._call({"type": "dependencies", "id": self._key}))

    def enqueue(
        self,
        command: Union[str, NewJob],
        payload: object = {},  # noqa: B006
        **options: Unpack[Options],
    ) -> int:
        """Enqueue a job through the worker, in a transaction of its own. Returns its id."""
        return self.enqueue_many([new_job(command, payload, options)])[0]

    def enqueue_many(self, jobs: Iterable[NewJob]) -> List[int]:
        """Enqueue jobs through the worker: all of them, or none. Returns their ids."""
        return [int(one) for one in self._call({"type": "enqueue", "jobs": messages(list(jobs))})]

    def complete_in(self, connection: Any, result: Any = None) -> None:
        """Complete the job in the transaction of this connection: with its other writes, or not at all.

        Commit afterwards; the value that the function returns is then ignored. Raises ``ClaimLost``, which rolls back,
        if another worker has the job now. The login must be a member of ``bugle_worker``. In ``bugle_jobs.testing`` the
        completion is noted, and the connection is not used for it.
        """
        if self._takes_completion(result):
            return
        statement, parameters = self._completion(result)
        self._completed(_sql.query(connection, statement, parameters))


class AsyncJob(BaseJob):
    """A job for an ``async`` function. When it should stop, the function is cancelled, as asyncio does it."""

    __slots__ = ()

    async def _call(self, message: Dict[str, Any]) -> Any:
        answered: asyncio.Future[Dict[str, Any]] = asyncio.get_running_loop().create_future()

        def answer(reply: Dict[str, Any]) -> None:
            if not answered.done():
                answered.set_result(reply)

        self._channel.call(message, answer)
        return _value(await answered)

    async def step(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do something once per job, even if the job is retried: the output is stored, and returned the next time."""
        self.check()
        stored = await self._call({"type": "step.get", "id": self._key, "name": name})
        if stored["done"]:
            output: T = stored.get("output")
            return output
        try:
            output = await work()
        except Exception as error:
            if _has_failed(error):
                await self._call({"type": "step.put", "id": self._key, "name": name, **_failed(error)})
            raise
        await self._call({"type": "step.put", "id": self._key, "name": name, "output": output})
        return output

    async def spawn(self, jobs: Iterable[NewJob]) -> None:
        """Enqueue children, and return from the function: the job runs again when they have ended."""
        await self._call({"type": "spawn", "id": self._key, "jobs": messages(list(jobs))})
        self._spawned()

    async def children(self) -> List[Ended]:
        """The children that this job has spawned, and how they ended. Empty in the first run."""
        return _ended(await self._call({"type": "children", "id": self._key}))

    async def dependencies(self) -> List[Ended]:
        """The jobs that this one waited for."""
        return _ended(await self._call({"type": "dependencies", "id": self._key}))

    async def enqueue(
        self,
        command: Union[str, NewJob],
        payload: object = {},  # noqa: B006
        **options: Unpack[Options],
    ) -> int:
        """Enqueue a job through the worker, in a transaction of its own. Returns its id."""
        return (await self.enqueue_many([new_job(command, payload, options)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> List[int]:
        """Enqueue jobs through the worker: all of them, or none. Returns their ids."""
        return [int(one) for one in await self._call({"type": "enqueue", "jobs": messages(list(jobs))})]

    async def complete_in(self, connection: Any, result: Any = None) -> None:
        """Complete the job in the transaction of this connection: with its other writes, or not at all.

        Commit afterwards; the value that the function returns is then ignored. Raises ``ClaimLost``, which rolls back,
        if another worker has the job now. The login must be a member of ``bugle_worker``. In ``bugle_jobs.testing`` the
        completion is noted, and the connection is not used for it.
        """
        if self._takes_completion(result):
            return
        statement, parameters = self._completion(result)
        self._completed(await _sql.aquery(connection, statement, parameters))
