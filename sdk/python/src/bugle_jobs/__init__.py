"""Run and enqueue jobs of Bugle, the job queue for Postgres.

    from bugle_jobs import Fail, Host

    host = Host()

    @host.on("send_mail")
    def send_mail(to: str, subject: str = ""):
        if "@" not in to:
            raise Fail("no such address", retryable=False)
        return {"sent_to": to}

    host.run()

A worker starts this program and sends it jobs. To enqueue in your own transaction, see ``enqueue`` and ``aenqueue``;
for tests, ``bugle_jobs.testing``.
"""

from ._enqueue import aenqueue, aenqueue_many, enqueue, enqueue_many
from ._host import Host
from ._job import AsyncJob, Chain, Ended, Job
from ._new_job import NewJob, Options
from ._outcomes import BadPayload, CallFailed, Cancelled, ClaimLost, Fail, Outcome, Skip, Snooze, Wait

from ._version import __version__

__all__ = [
    "AsyncJob",
    "BadPayload",
    "CallFailed",
    "Cancelled",
    "Chain",
    "ClaimLost",
    "Ended",
    "Fail",
    "Host",
    "Job",
    "NewJob",
    "Options",
    "Outcome",
    "Skip",
    "Snooze",
    "Wait",
    "aenqueue",
    "aenqueue_many",
    "enqueue",
    "enqueue_many",
]
