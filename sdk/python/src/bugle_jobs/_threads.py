"""Threads for plain functions."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Callable, Deque, Generic, Set, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Runs jobs in daemon threads, so that one that hangs does not keep the process from ending.

    The obvious form, a queue that all threads wait at, wakes one thread per job: with jobs of microseconds, most of the
    time is then spent on handing over the interpreter's lock. Here at most one thread is being woken at any time. It
    wakes the next before it runs a job. While jobs are so short that it never gives up the lock, the threads behind it
    stay asleep and it runs all of them; a job that blocks lets the next thread in.
    """

    def __init__(self, run: Callable[[T], None], most: int) -> None:
        self._run = run
        self._most = most
        self._count = 0
        self._pending: Deque[T] = deque()
        self._waiting: Set[int] = set()
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_waking = False

    def put(self, job: T) -> None:
        """Run a job. Always called by the same thread."""
        self._pending.append(job)
        if self._count < self._most and len(self._pending) > len(self._waiting):
            self._count += 1
            threading.Thread(target=self._work, name=f"bugle-{self._count}", daemon=True).start()
        self._wake()

    def _wake(self) -> None:
        # Without a lock: the worst case is a spurious wake-up. A thread that is woken clears the flag before it takes
        # jobs, so a job that was put while the flag was set is found.
        if not self._is_waking:
            self._is_waking = True
            self._tokens.put(None)

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            try:
                job = self._pending.popleft()
            except IndexError:
                self._waiting.add(me)
                self._tokens.get()
                self._waiting.discard(me)
                self._is_waking = False
                continue
            if self._pending:
                self._wake()
            self._run(job)
            del job  # while it waits for the next, it does not keep the payload
