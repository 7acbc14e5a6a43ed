"""A host without a package: the least that Python does for a job."""

import json
import os
import socket
import time


def result(job):
    if job["command"] == "stamp":
        return {"t0": job["payload"]["t0"], "t": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
    return None


def answer(message):
    if message["type"] == "job":
        yield {"type": "done", "id": message["id"], "claim": message["claim"], "result": result(message)}
    elif message["type"] == "ping":
        yield {"type": "pong"}


def send(messages):
    worker.sendall("".join(json.dumps(message) + "\n" for message in messages).encode())


worker = socket.socket(socket.AF_UNIX)
worker.connect(os.environ["BUGLE_HOST"])
send([{"type": "hello", "protocol": 1, "commands": ["noop", "stamp"], "language": "python"}])
rest = b""
while data := worker.recv(1 << 18):
    *lines, rest = (rest + data).split(b"\n")
    # one write for all that is there
    send(said for line in lines for said in answer(json.loads(line)))
