"""A host whose processes do something wrong before they say hello, each once, and then run jobs like any other."""
import json, os, socket, sys

mark = os.path.join(os.environ["FOLDER"], "wrong-" + os.environ["BUGLE_HOST_PROCESS"])
kind = None if os.path.exists(mark) else int(os.environ["BUGLE_HOST_PROCESS"])
open(mark, "w").close()

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["BUGLE_HOST"])
if kind == 1:  # connects, and is gone
    sys.exit(1)
elif kind == 2:
    connection.sendall(os.urandom(300) + b"\n")
elif kind == 3:  # half a line
    connection.sendall(b'{"type": "hello", "proto')
    sys.exit(2)
elif kind == 4:  # a line without an end
    try:
        connection.sendall(b"x" * (10 * 1024 * 1024))
    except OSError:
        pass
elif kind == 5:
    connection.sendall(b'{"type": "done", "id": "1"}\n')
elif kind == 6:  # connects, and says hello by another connection
    connection.close()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["BUGLE_HOST"])
if kind in (2, 4, 5):
    connection.recv(1 << 16)
    connection.recv(1 << 16)
    sys.exit(3)
connection.sendall(b'{"type": "hello", "protocol": 1, "commands": ["late"], "concurrency": 2}\n')
held = bytearray()
for line in connection.makefile("rb"):
    job = json.loads(line)
    if job["type"] == "job":
        held += b"x" * (job["payload"] or 0)
        answer = {"type": "done", "id": job["id"], "claim": job["claim"], "result": os.getpid()}
        connection.sendall(json.dumps(answer).encode() + b"\n")
    elif job["type"] == "ping":
        connection.sendall(b'{"type": "pong"}\n')
