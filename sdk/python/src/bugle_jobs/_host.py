"""The host: the functions of an application, and the connection to the worker."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import platform
import sys
from typing import Any, AsyncContextManager, Callable, Dict, List, Optional, Tuple, TypeVar

from . import _json
from ._function import AnyFunction, Around, Registered, check_command, registered
from ._job import AsyncJob, BaseJob, Job
from ._run import answer, identity, run_async, run_batch_async, run_work
from ._threads import Threads
from ._version import __version__

F = TypeVar("F", bound=AnyFunction)
B = TypeVar("B", bound=AnyFunction)


class Host:
    """The functions that run jobs.

    ``concurrency`` is the number of jobs that a process runs at once, unless the worker's file sets it. ``lifespan``
    returns an asynchronous context manager that is entered before the first job and left after the last, for what async
    functions share, such as a pool of connections. ``around`` returns a context manager that is entered around each
    call of a function, in the same thread. It gets the jobs of the call: one, or those of a batch. What the function
    raises passes through it.
    """

    def __init__(
        self,
        *,
        concurrency: int = 16,
        lifespan: Optional[Callable[[], AsyncContextManager[Any]]] = None,
        around: Optional[Around] = None,
    ) -> None:
        if not isinstance(concurrency, int) or not 1 <= concurrency <= 10_000:
            raise ValueError(f"concurrency must be between 1 and 10000, not {concurrency!r}")
        self.concurrency = concurrency
        self.functions: Dict[str, Registered] = {}
        self._lifespan = lifespan
        self._around = around

    def on(self, command: str) -> Callable[[F], F]:
        """Run the jobs of a command with this function: ``async``, or a plain one, which runs in a thread.

        A first parameter named ``job`` gets the job. The others get the fields of the payload with their names; a
        single one that is a dataclass, a pydantic model or a TypedDict, or that is named ``payload``, gets all of it.
        What the function returns is the result; an exception is a failure.
        """
        check_command(command, '@host.on("command")')

        def register(function: F) -> F:
            self._add(registered(command, function, around=self._around))
            return function

        return register

    def on_many(self, command: str, *, most: int, payload: Any = None) -> Callable[[B], B]:
        """Run up to ``most`` jobs of a command in one call of this function, which takes a list of jobs.

        With ``payload=Page``, the payload of each job is a ``Page``; a function whose parameter is a ``List[Page]``
        takes the payloads instead of the jobs. A job whose payload does not fit fails by itself, and is not in the
        list.

        The function returns a list with a result or an ``Outcome`` for each job, in their order; or it calls
        ``job.done`` and ``job.fail`` and returns nothing, and jobs without an outcome are completed. An exception
        fails all jobs that have no outcome yet, and they are retried each in a call of its own. To fail all of them
        and have them retried together, raise ``Fail``.
        """
        check_command(command, '@host.on_many("command", most=100)')
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 10_000:
            raise ValueError(f"most must be between 1 and 10000, not {most!r}")

        def register(function: B) -> B:
            self._add(registered(command, function, most=most, payload=payload, around=self._around))
            return function

        return register

    def _add(self, function: Registered) -> None:
        if function.command in self.functions:
            raise ValueError(f"command {function.command!r} is already registered")
        self.functions[function.command] = function

    def run(self) -> None:
        """Connect to the worker that has started this process, and run jobs until it closes the connection."""
        path = os.environ.get("BUGLE_HOST")
        if not path:
            arguments: List[str] = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # since Python 3.10, with -m
            command = [sys.executable or "python3", *arguments]
            program = ", ".join(json.dumps(one, ensure_ascii=False) for one in command)
            sys.exit(
                "BUGLE_HOST is not set: a worker starts this program. Put this into its file, and run `bugle dev`:\n\n"
                f"[hosts.app]\nprogram = [{program}]"
            )
        if not self.functions:
            sys.exit('this host has no functions: register one with @host.on("command") before host.run()')
        for stream in (sys.stdout, sys.stderr):
            # to a pipe, which the worker reads, lines would otherwise be written when there are 8 KiB of them
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        try:
            error = asyncio.run(self._serve(path))
        except KeyboardInterrupt:
            return
        if error:
            sys.exit(error)

    async def _serve(self, path: str) -> Optional[str]:
        if self._lifespan is None:
            return await self._connect(path)
        async with self._lifespan():
            return await self._connect(path)

    async def _connect(self, path: str) -> Optional[str]:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(lambda: Connection(self, loop), path)
        except OSError as error:
            return f"cannot connect to the worker at {path}: {error}"
        await connection.closed
        await connection.end()
        return connection.refused


class Connection(asyncio.Protocol):
    """The connection to a worker. Everything runs in the thread of the event loop, except sending."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self.closed: asyncio.Future[None] = loop.create_future()
        self.refused: Optional[str] = None
        self._host = host
        self._loop = loop
        self._transport: Optional[asyncio.Transport] = None
        self._partial: List[bytes] = []
        self._out: List[bytes] = []
        self._progress: Dict[str, bytes] = {}
        self._is_flushing = False
        # with the claim: a job that was given up may come again while its function still runs
        self._jobs: Dict[Tuple[str, str], BaseJob] = {}
        self._threads: Optional[Threads[Tuple[Registered, Any]]] = None
        self._calls: Dict[str, Callable[[Dict[str, Any]], None]] = {}
        self._call_numbers = itertools.count(1)
        self._tasks: Dict[asyncio.Task[None], List[BaseJob]] = {}
        self._handlers: Dict[str, Callable[[Dict[str, Any]], None]] = {
            "job": self._on_job,
            "jobs": self._on_jobs,
            "reply": self._on_reply,
            "cancel": self._on_cancel,
            "ping": self._on_ping,
            "welcome": self._on_welcome,
            "error": self._on_error,
            "drain": lambda message: None,  # the worker closes the connection after the last job
        }

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        functions = self._host.functions.values()
        commands = [one.command if one.most is None else {"name": one.command, "most": one.most} for one in functions]
        self.send(
            {
                "type": "hello",
                "protocol": 1,
                "commands": commands,
                "concurrency": self._host.concurrency,
                "language": f"python {platform.python_version()}",
                "sdk": f"bugle-jobs {__version__}",
            }
        )

    def data_received(self, data: bytes) -> None:
        # a large line comes in many pieces: they are joined once
        if b"\n" not in data:
            self._partial.append(data)
            return
        if self._partial:
            data = b"".join([*self._partial, data])
            self._partial.clear()
        lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self._partial.append(rest)
        for line in lines:
            try:
                message = _json.message(line)
                handler = self._handlers.get(message["type"])
            except (ValueError, KeyError, TypeError, RecursionError):
                if line.strip():
                    self._salvage(line)
                continue
            if handler is None:
                error = f"this host does not know messages of the type {message['type']!r:.200}"
                self._say_error("unknown_type", error)
                continue
            handler(message)

    def _salvage(self, line: bytes) -> None:
        """Let a value that Python cannot read end its own job, and no other."""
        try:
            message, why = _json.salvage(line.decode())
            kind, told = message["type"], "; ".join(why)
            if kind == "job" and why:
                self._unreadable(message, told)
            elif kind == "jobs" and not why:
                for job in message["jobs"]:
                    if "unreadable" in job:
                        self._unreadable(job, job["unreadable"])
                readable = [job for job in message["jobs"] if "unreadable" not in job]
                if readable:
                    self._on_jobs({**message, "jobs": readable})
            elif kind == "reply" and why:
                self._on_reply({"call": message["call"], "error": told, "code": "unreadable"})
            else:
                raise ValueError(told)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._say_error("bad_line", "this is not a line of JSON with a type")

    def _unreadable(self, message: Dict[str, Any], why: str) -> None:
        self.send({"type": "fail", **identity(message), "error": why, "code": "bad_payload", "retryable": False})

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Optional[Exception]) -> None:
        for job in list(self._jobs.values()):
            self._stop(job, "lost")
        for answered in list(self._calls.values()):
            answered({"error": "the connection to the worker is closed", "code": "unavailable"})
        self._calls.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    async def end(self) -> None:
        """Give async functions a moment to clean up. The worker has given up their jobs."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=3)

    # --- messages to the worker, from any thread

    def send(self, message: Dict[str, Any]) -> None:
        self._write(_json.line(message))

    def progress(self, message: Dict[str, Any]) -> None:
        """Send progress. Only the newest of a job is sent."""
        self._progress[message["id"]] = _json.line(message)
        self._schedule()

    def call(self, message: Dict[str, Any], answered: Callable[[Dict[str, Any]], None]) -> None:
        call = str(next(self._call_numbers))
        line = _json.line({**message, "call": call})
        self._calls[call] = answered
        if self.closed.done():
            self._calls.pop(call, None)
            answered({"error": "the connection to the worker is closed", "code": "unavailable"})
            return
        self._write(line)

    def _write(self, line: bytes) -> None:
        self._out.append(line)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop has ended, and with it the connection
                pass

    def _flush(self) -> None:
        # cleared first: what is added from now on is either taken below, or schedules a flush of its own
        self._is_flushing = False
        count = len(self._out)
        lines = self._out[:count]
        del self._out[:count]
        if self._progress:
            newest = []
            for key in list(self._progress):
                newest.append(self._progress.pop(key))
            lines = newest + lines
        if lines and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(lines))

    def _say_error(self, code: str, error: str) -> None:
        self.send({"type": "error", "code": code, "error": error})

    # --- messages from the worker

    def _on_welcome(self, message: Dict[str, Any]) -> None:
        self._threads = Threads(run_work, int(message.get("concurrency") or self._host.concurrency))

    def _on_error(self, message: Dict[str, Any]) -> None:
        text = f"the worker says: {message.get('error')} ({message.get('code')})"
        if self._threads is None:
            self.refused = text
        print(text, file=sys.stderr, flush=True)

    def _on_ping(self, message: Dict[str, Any]) -> None:
        self._write(b'{"type":"pong"}\n')

    def _on_reply(self, message: Dict[str, Any]) -> None:
        answered = self._calls.pop(message.get("call", ""), None)
        if answered is not None:
            answered(message)

    def _on_cancel(self, message: Dict[str, Any]) -> None:
        job = self._jobs.get((message["id"], message["claim"]))
        if job is not None:
            self._stop(job, message.get("reason") or "cancelled")

    def _stop(self, job: BaseJob, reason: str) -> None:
        job._stop(reason)
        # the others of its batch go on
        if job._task is not None and all(one._cancelled or one._is_answered for one in self._tasks.get(job._task, ())):
            job._task.cancel()

    def _on_job(self, message: Dict[str, Any]) -> None:
        function = self._host.functions.get(message["command"])
        if function is None:
            self._unknown(message)
        elif function.most is not None:
            self._on_jobs({"command": message["command"], "jobs": [message]})
        elif function.is_async:
            job: BaseJob = AsyncJob(message, self)
            self._jobs[job._key, job._claim] = job
            self._start(run_async(function, job), [job])
        else:
            job = Job(message, self)
            self._jobs[job._key, job._claim] = job
            self._in_a_thread(function, job)

    def _on_jobs(self, message: Dict[str, Any]) -> None:
        function = self._host.functions.get(message["command"])
        kind = AsyncJob if function is not None and function.is_async else Job
        jobs: List[BaseJob] = [kind({"command": message["command"], **one}, self) for one in message["jobs"]]
        if function is None or function.most is None:
            for job in jobs:
                self._unknown(job._message)
            return
        for job in jobs:
            self._jobs[job._key, job._claim] = job
        if function.is_async:
            self._start(run_batch_async(function, jobs), jobs)
        else:
            self._in_a_thread(function, jobs)

    def _unknown(self, message: Dict[str, Any]) -> None:
        error = f"this host has no function for the command {message['command']!r:.200}"
        self.send({"type": "fail", **identity(message), "error": error, "code": "unknown_command"})

    # --- running functions

    def _start(self, coroutine: Any, jobs: List[BaseJob]) -> None:
        if sys.version_info >= (3, 12):
            # runs up to its first wait at once: one that waits for nothing never enters the loop
            task = asyncio.Task(coroutine, loop=self._loop, eager_start=True)
        else:
            task = self._loop.create_task(coroutine)
        if task.done():
            return
        self._tasks[task] = jobs
        for job in jobs:
            job._task = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        for job in self._tasks.pop(task, ()):
            job._task = None
            # one that was cancelled before its first step has said nothing
            self.settle(job, None, asyncio.CancelledError())

    def _in_a_thread(self, function: Registered, jobs: Any) -> None:
        if self._threads is None:
            self._say_error("bad_message", "a job came before welcome")
        else:
            self._threads.put((function, jobs))

    def takes_completion(self, job: BaseJob, result: Any) -> bool:
        """A job is completed by SQL."""
        return False

    def settle(self, job: BaseJob, result: Any, error: Optional[BaseException]) -> None:
        """Answer a job, unless that was done before."""
        if job._is_answered:
            return
        job._is_answered = True
        self._jobs.pop((job._key, job._claim), None)
        self._write(answer(job, result, error))
