"""A job to enqueue. Its options have the names of the columns of ``bugle.jobs``."""

from __future__ import annotations

import collections.abc
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, TypedDict, Union

from . import _json
from ._outcomes import seconds

if TYPE_CHECKING:
    from typing_extensions import Literal, Unpack

Interval = Union[timedelta, float, str]
"""A timedelta, seconds, or an interval as Postgres spells it."""

Time = Union[datetime, str]
"""A datetime with a time zone, or a time as Postgres spells it."""


class Options(TypedDict, total=False):
    """The options of a new job, besides its command and its payload. ``None`` means the default."""

    queue: Optional[str]
    priority: Optional[int]
    run_at: Optional[Time]
    delay: Optional[Interval]
    deadline: Optional[Time]
    timeout: Optional[Interval]
    max_attempts: Optional[int]
    retry_policy: Optional[str]
    retry_delay: Optional[Interval]
    headers: Optional[Mapping[str, Any]]
    unique_key: Optional[str]
    on_conflict: Optional[Literal["keep", "replace", "move"]]
    idempotency_key: Optional[str]
    idempotency_ttl: Optional[Interval]
    order_key: Optional[str]
    limit_key: Optional[str]
    fair_key: Optional[str]
    steps: Optional[Sequence[str]]
    on_success: Optional[str]
    on_failure: Optional[str]
    after: Optional[Sequence[Union[int, Mapping[str, Any]]]]


OPTIONS = frozenset(Options.__annotations__)
_INTERVALS = ("delay", "timeout", "retry_delay", "idempotency_ttl")
_TIMES = ("run_at", "deadline")


class NewJob:
    """A job to enqueue: a command, its payload, and options named like the columns of ``bugle.jobs``.

    >>> NewJob("send_mail", {"to": "ada@example.org"}, queue="mail", delay=timedelta(minutes=10))
    NewJob('send_mail', {'to': 'ada@example.org'}, queue='mail', delay='600 seconds')
    """

    __slots__ = ("command", "payload", "options")

    def __init__(self, command: str, payload: object = {}, **options: Unpack[Options]) -> None:  # noqa: B006
        self.command = command
        self.payload = payload
        self.options = _checked(dict(options))

    def to_dict(self) -> Dict[str, Any]:
        """The job as ``bugle.enqueue_job`` takes it."""
        return {"command": self.command, "payload": self.payload, **self.options}

    def to_json(self) -> str:
        """The same as JSON, to enqueue with any driver: ``select bugle.enqueue_job(%s::jsonb)``."""
        return _json.text(self.to_dict())

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"NewJob({self.command!r}, {self.payload!r}{options})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NewJob) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def new_job(command: Union[str, NewJob], payload: object, options: Any) -> NewJob:
    """The job of the arguments of a function that enqueues one."""
    if isinstance(command, NewJob):
        if payload != {} or options:
            raise TypeError("a NewJob has its payload and its options already")
        return command
    return NewJob(command, payload, **options)


def _checked(options: Dict[str, Any]) -> Dict[str, Any]:
    checked: Dict[str, Any] = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(f"a job has no option {name!r}; there are {', '.join(sorted(OPTIONS))}")
        if value is None:
            continue
        if name in _INTERVALS and not isinstance(value, str):
            value = f"{seconds(value, name):.6f}".rstrip("0").rstrip(".") + " seconds"
        elif name in _TIMES and isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError(f"{name} must have a time zone, as datetime.now(timezone.utc) has: {value}")
            value = value.isoformat()
        elif name in ("steps", "after"):
            if isinstance(value, str) or not isinstance(value, collections.abc.Iterable):
                raise TypeError(f"{name} must be a list, not {value!r}")
            value = list(value)
            if name == "after":
                _check_after(value)
        elif name == "headers":
            value = dict(value)
        checked[name] = value
    return checked


def _check_after(jobs: List[Any]) -> None:
    for one in jobs:
        job = one.get("job") if isinstance(one, collections.abc.Mapping) else one
        if isinstance(job, bool) or not isinstance(job, int):
            # a string would be the name of a job of the same workflow
            raise TypeError(f"after takes the ids of jobs, which are integers, not {job!r}")


def messages(jobs: Sequence[NewJob]) -> List[Dict[str, Any]]:
    """Jobs as the protocol spells them."""
    return [job.to_dict() for job in jobs]
