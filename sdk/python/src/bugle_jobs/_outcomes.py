"""Outcomes of a job other than a result: raise one of these, or return it."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Dict, Optional, Union

Duration = Union[float, timedelta]
"""Seconds, or a timedelta."""


def seconds(duration: Duration, what: str) -> float:
    """A duration in seconds; a ValueError for one that Bugle would reject."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} must be a number of seconds, 0 or more, not {duration!r}")
    return float(value)


def optional_text(value: Optional[str], what: str) -> Optional[str]:
    """A text or None; a TypeError for what the worker would reject."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {value!r:.100}")
    return value


class Outcome(Exception):
    """The base class of all outcomes."""

    type = ""

    def fields(self) -> Dict[str, Any]:
        """The fields of the message, without those that are not set."""
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {name: value for name, value in own.items() if value is not None}


class Fail(Outcome):
    """The attempt failed. It is retried by the job's policy, or after ``retry_after``, or not at all.

    ``code`` groups failures of the same cause, and is what alerts and filters use.
    """

    type = "fail"

    def __init__(
        self,
        error: str,
        *,
        code: Optional[str] = None,
        retryable: bool = True,
        retry_after: Optional[Duration] = None,
    ) -> None:
        super().__init__(error)
        if not isinstance(retryable, bool):
            raise TypeError(f"retryable must be True or False, not {retryable!r:.100}")
        self.error = str(error)
        self.code = optional_text(code, "the code of a failure")
        self.retryable = retryable
        self.retry_after = None if retry_after is None else seconds(retry_after, "retry_after")


class Snooze(Outcome):
    """Run the job again after this time. The attempt is not counted."""

    type = "snooze"

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "the delay")
        super().__init__(f"again in {self.delay:g} seconds")


class Wait(Outcome):
    """The job waits for a result, or for an answer to continue with, from outside."""

    type = "wait"

    def __init__(self, token: Optional[str] = None, *, at_most: Optional[Duration] = None) -> None:
        super().__init__("waits for an answer")
        self.token = optional_text(token, "the token")
        self.at_most = None if at_most is None else seconds(at_most, "at_most")


class Skip(Outcome):
    """Skip this step of a chain. A job that is not a chain is completed."""

    type = "skip"

    def __init__(self, reason: Optional[str] = None) -> None:
        super().__init__(reason or "skipped")
        self.reason = optional_text(reason, "the reason")


class Cancelled(Outcome):
    """There is nothing left to do: the job is cancelled.

    Also what methods of a job raise when it should stop: let it pass.
    """

    type = "cancelled"

    def __init__(self, reason: Optional[str] = None) -> None:
        super().__init__(reason or "cancelled")
        self.reason = optional_text(reason, "the reason")


class BadPayload(Fail):
    """The payload does not fit the function. It is not retried."""

    def __init__(self, error: str) -> None:
        super().__init__(error, code="bad_payload", retryable=False)


class CallFailed(Fail):
    """The worker rejected a call: ``code`` says why. Without an ``except``, the attempt fails with it."""

    def __init__(self, error: str, code: str) -> None:
        super().__init__(error, code=code)


class ClaimLost(Fail):
    """Another worker has the job now. Roll back: raised by ``complete_in`` inside your transaction."""

    def __init__(self, verdict: str) -> None:
        super().__init__(f"the job is not held by this worker any more ({verdict})", code="fenced")
