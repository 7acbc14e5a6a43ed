"""A worker that says what a test tells it, over a real socket to a real process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

DEADLINE = 30.0
OUTCOMES = ("done", "fail", "snooze", "wait", "skip", "cancelled", "settled")


class ScriptedWorker:
    """Starts a host program and speaks protocol 1 with it."""

    def __init__(self, program: str, concurrency: int = 4) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bugle-test-")
        path = os.path.join(self._folder.name, "host")
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(DEADLINE)
        listener.bind(path)
        listener.listen()
        # stdout and stderr are files: a pipe that is not read would fill
        self._output = open(os.path.join(self._folder.name, "output"), "w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "BUGLE_HOST": path},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self._connection, _ = listener.accept()
        listener.close()
        self._connection.settimeout(DEADLINE)
        self._lines = self._connection.makefile("rb")
        self.hello = self.receive()
        self.send(type="welcome", protocol=1, host="test", process=1, concurrency=concurrency, worker="w")

    def __enter__(self) -> ScriptedWorker:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.process.poll() is None and self._connection.fileno() >= 0:
            self.close()
        if error is not None:
            self.process.kill()
        self.process.wait(DEADLINE)
        if error is not None:
            print(self.output(), file=sys.stderr)
        self._output.close()
        self._folder.cleanup()

    def output(self) -> str:
        """What the host has printed."""
        self._output.seek(0)
        return self._output.read().decode()

    def send_raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def send(self, **message: Any) -> None:
        self.send_raw(json.dumps(message).encode() + b"\n")

    def job(self, id: int, command: str, payload: Any = {}, **fields: Any) -> None:  # noqa: B006
        self.send(type="job", id=str(id), claim="1", command=command, attempt=1, payload=payload, **fields)

    def receive(self) -> Dict[str, Any]:
        line = self._lines.readline()
        assert line.endswith(b"\n"), "the host has closed the connection"
        message = json.loads(line)
        assert isinstance(message, dict)
        # every outcome names the claim, and nothing else does
        assert (message.pop("claim", None) == "1") == (message["type"] in OUTCOMES), message
        return message

    def receive_all(self, count: int) -> Dict[str, Dict[str, Any]]:
        """This number of outcomes, by the ids of their jobs."""
        outcomes: List[Dict[str, Any]] = [self.receive() for _ in range(count)]
        return {one["id"]: one for one in outcomes}

    def close(self) -> int:
        """End the connection, and wait until the host has exited."""
        self._connection.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._connection.close()
        return self.process.wait(DEADLINE)
