"""Enqueue in the transaction of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

from . import _json, _sql
from ._new_job import NewJob, Options, new_job

if TYPE_CHECKING:
    from typing_extensions import Unpack

_JSON = "cast(cast({} as text) as jsonb)"
_ONE = f"select bugle.enqueue_job({_JSON})"
_EACH = f"select bugle.enqueue_job(j.value) from jsonb_array_elements({_JSON}) with ordinality j order by j.ordinality"
_CHUNK = 10_000

# the columns that a plain INSERT sets, with their types; the others take bugle.enqueue_job
_COLUMNS = {
    "command": "text",
    "payload": "jsonb",
    "queue": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "deadline": "timestamptz",
    "timeout": "interval",
    "max_attempts": "integer",
    "retry_policy": "text",
    "retry_delay": "interval",
    "headers": "jsonb",
    "order_key": "text",
    "limit_key": "text",
    "fair_key": "text",
    "steps": "text[]",
    "on_success": "text",
    "on_failure": "text",
}
_DEFAULTS = {"queue": "'default'", "priority": "0", "run_at": "now()"}

_captured: Optional[Callable[[NewJob], int]] = None


def capture(into: Optional[Callable[[NewJob], int]]) -> Optional[Callable[[NewJob], int]]:
    """For tests: pass jobs to this function instead of a database. Returns the function that was set before."""
    global _captured
    before, _captured = _captured, into
    return before


def enqueue(
    connection: Any,
    command: Union[str, NewJob],
    payload: object = {},  # noqa: B006
    **options: Unpack[Options],
) -> int:
    """Enqueue a job in the transaction of this connection, and return its id.

    ``connection`` is a connection or cursor of psycopg or psycopg2, ``django.db.connection``, or a ``Session`` or
    ``Connection`` of SQLAlchemy. If a live job has the ``unique_key``, or a job the ``idempotency_key``, its id is
    returned.
    """
    job = new_job(command, payload, options)
    if _captured:
        return _captured(job)
    return int(_sql.query(connection, _ONE, [job.to_json()])[0])


async def aenqueue(
    connection: Any,
    command: Union[str, NewJob],
    payload: object = {},  # noqa: B006
    **options: Unpack[Options],
) -> int:
    """The same with a connection of asyncpg, an ``AsyncConnection`` of psycopg, or an ``AsyncSession`` or
    ``AsyncConnection`` of SQLAlchemy."""
    job = new_job(command, payload, options)
    if _captured:
        return _captured(job)
    return int((await _sql.aquery(connection, _ONE, [job.to_json()]))[0])


def enqueue_many(connection: Any, jobs: Iterable[NewJob]) -> List[int]:
    """Enqueue many jobs in the transaction of this connection. Returns their ids, in the order of the jobs."""
    ids: List[int] = []
    all_jobs = list(jobs)
    if _captured:
        return [_captured(job) for job in all_jobs]
    for statement, parameter in _statements(all_jobs):
        ids.extend(int(one) for one in _sql.query(connection, statement, [parameter]))
    return ids


async def aenqueue_many(connection: Any, jobs: Iterable[NewJob]) -> List[int]:
    """The same with an asynchronous connection."""
    ids: List[int] = []
    all_jobs = list(jobs)
    if _captured:
        return [_captured(job) for job in all_jobs]
    for statement, parameter in _statements(all_jobs):
        ids.extend(int(one) for one in await _sql.aquery(connection, statement, [parameter]))
    return ids


def _statements(jobs: List[NewJob]) -> Iterable[Tuple[str, str]]:
    """Statements and their parameter. Jobs that an INSERT can express take that way, which is much faster."""
    columns = {"command": None, "payload": None, **{name: None for job in jobs for name in job.options}}
    # to a recordset, the JSON value null is a column that is not set
    is_plain = columns.keys() <= _COLUMNS.keys() and all(job.payload is not None for job in jobs)
    statement = _insert(columns) if is_plain else _EACH
    for start in range(0, len(jobs), _CHUNK):
        yield statement, _json.text([job.to_dict() for job in jobs[start : start + _CHUNK]])


def _insert(columns: Dict[str, None]) -> str:
    values = ", ".join(_value(name) for name in columns)
    types = ", ".join(f"{name} {_COLUMNS[name]}" for name in columns)
    return (
        f"insert into bugle.jobs ({', '.join(columns)}) select {values} "
        f"from jsonb_to_recordset({_JSON}) as j ({types}) returning id"
    )


def _value(column: str) -> str:
    # a statement for many jobs has all columns that one of them sets
    return f"coalesce(j.{column}, {_DEFAULTS[column]})" if column in _DEFAULTS else f"j.{column}"
