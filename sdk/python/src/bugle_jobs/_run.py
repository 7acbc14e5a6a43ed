"""Runs a function on a job, or on a batch, and turns what it returns or raises into an outcome."""

from __future__ import annotations

import asyncio
import os
import traceback
from typing import Any, Dict, List, Optional, Tuple

from . import _json
from ._function import Registered
from ._job import BaseJob
from ._outcomes import Cancelled, Fail, Outcome

_MOST_BYTES_OF_AN_ERROR = 4000


def run_work(work: Tuple[Registered, Any]) -> None:
    """Run a plain function on a job, or on a list of jobs if it takes batches."""
    function, jobs = work
    if function.most is not None:
        _run_batch(function, jobs)
        return
    try:
        result = function.run(jobs)
    except BaseException as error:
        jobs._channel.settle(jobs, None, error)
    else:
        jobs._channel.settle(jobs, result, None)


async def run_async(function: Registered, job: BaseJob) -> None:
    """Run an async function on a job."""
    try:
        result = await function.run(job)
    except BaseException as error:
        job._channel.settle(job, None, error)
    else:
        job._channel.settle(job, result, None)


def _run_batch(function: Registered, jobs: List[BaseJob]) -> None:
    jobs = _fitting(function, jobs)
    try:
        if jobs:
            _settle_all(function, jobs, function.run(jobs))
    except BaseException as error:
        _fail_all(jobs, error)


async def run_batch_async(function: Registered, jobs: List[BaseJob]) -> None:
    """Run an async function on a batch."""
    jobs = _fitting(function, jobs)
    try:
        if jobs:
            _settle_all(function, jobs, await function.run(jobs))
    except BaseException as error:
        _fail_all(jobs, error)


def _fitting(function: Registered, jobs: List[BaseJob]) -> List[BaseJob]:
    """The jobs whose payloads fit, with their payloads decoded. Each of the others fails by itself."""
    if function.payload is None:
        return jobs
    fitting = []
    for job in jobs:
        try:
            job._message["payload"] = function.payload(job.payload, "payload")
        except Exception as error:
            job._channel.settle(job, None, error)
        else:
            fitting.append(job)
    return fitting


def _fail_all(jobs: List[BaseJob], error: BaseException) -> None:
    # one job may have caused it: each is retried in a call of its own. An outcome was chosen for all of them
    is_unexpected = not isinstance(error, (Outcome, asyncio.CancelledError))
    for job in jobs:
        job._is_to_be_alone = is_unexpected
        job._channel.settle(job, None, error)


def _settle_all(function: Registered, jobs: List[BaseJob], results: Any) -> None:
    if results is None:
        results = [None] * len(jobs)
    elif not isinstance(results, (list, tuple)) or len(results) != len(jobs):
        raise Fail(
            f"{function.command} must return a list with an outcome for each of its {len(jobs)} jobs, or None",
            code="bad_result",
            retryable=False,
        )
    for job, result in zip(jobs, results):
        job._channel.settle(job, result, None)


def answer(job: BaseJob, result: Any, error: Optional[BaseException]) -> bytes:
    """The outcome of a job, as a line. There always is one, because a job without an answer would hang."""
    try:
        return _answer(job, result, error)
    except Exception as cause:  # such as an error whose text cannot be made, or is no Unicode
        told = f"the outcome cannot be sent to the worker: {type(cause).__name__}"
        found = Fail(told, code="bad_result", retryable=False)
        return _json.line({"type": found.type, **identity(job._message), **found.fields()})


def _answer(job: BaseJob, result: Any, error: Optional[BaseException]) -> bytes:
    if error is None:
        if job._is_settled:
            return _json.line({"type": "settled", **identity(job._message)})
        if isinstance(result, BaseException):
            error = result
        elif result is None:
            return _json.done(job._key, job._claim, "null")
        else:
            try:
                return _json.done(job._key, job._claim, _json.text(result))
            except (TypeError, ValueError, RecursionError) as cause:
                error = Fail(f"the result cannot be stored: {cause}", code="bad_result", retryable=False)
    found = outcome(job, error)
    alone = {"alone": True} if job._is_to_be_alone else {}
    return _json.line({"type": found.type, **identity(job._message), **found.fields(), **alone})


def identity(message: Dict[str, Any]) -> Dict[str, str]:
    """Which job an outcome is of. Without the claim, a late one could be taken for that of the job's next attempt."""
    return {"id": message["id"], "claim": message["claim"]}


def outcome(job: BaseJob, error: BaseException) -> Outcome:
    """The outcome of a job whose function has raised this exception."""
    if isinstance(error, asyncio.CancelledError):
        return Cancelled(job._cancelled)
    if isinstance(error, Outcome):
        return error
    if isinstance(error, SystemExit):
        return Fail(f"the function has called exit({error.code!r})", code="SystemExit")
    return Fail(_told(error), code=type(error).__name__)


def _told(error: BaseException) -> str:
    """An exception as people read it: its message, and where in their code it was raised."""
    first = "".join(traceback.format_exception_only(type(error), error)).strip()
    own = os.path.dirname(__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) != own]
    text = first + "\n\n" + "".join(traceback.format_list(frames)) if frames else first
    if error.__cause__ is not None:
        text += f"\ncaused by {type(error.__cause__).__name__}: {error.__cause__}"
    encoded = text.replace("\0", "\\0").encode(errors="replace")
    if len(encoded) <= _MOST_BYTES_OF_AN_ERROR:
        return encoded.decode()
    half = _MOST_BYTES_OF_AN_ERROR // 2
    return f"{encoded[:half].decode(errors='ignore')}\n…\n{encoded[-half:].decode(errors='ignore')}"
