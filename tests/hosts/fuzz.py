"""A host that does everything wrong that it can. The payload of a job says what."""
import json, os, random, socket

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["BUGLE_HOST"])
reader = connection.makefile("rb")


def send(message):
    text = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
    connection.sendall(text)


def json_type(text):
    try:
        return type(json.loads(text))
    except ValueError:
        return None


send({"type": "hello", "protocol": 1, "commands": ["bad"]})
for line in reader:
    job = json.loads(line)
    if job["type"] == "ping":
        send({"type": "pong"})
    if job["type"] != "job":
        continue
    id, number = job["id"], job["payload"]
    end = {"type": "done", "id": id, "claim": job["claim"]}
    random.seed(number)
    kind = number % 20
    if kind == 0:
        send(random.randbytes(200) + b"\n")
    elif kind == 1:
        send(b'{"type": "done", "id": "' + id.encode())
        os._exit(0)
    elif kind == 2:
        send(b'{"type": "done", "result": "' + b"x" * (10 * 1024 * 1024) + b'"}\n')
    elif kind == 3:
        for other in range(1, 60):
            if str(other) != id:
                send({"type": random.choice(["done", "fail", "snooze"]), "id": str(other), "error": "e", "delay": 1})
        send(end)
    elif kind == 4:
        send(end)
        send(end)
        send({"type": "progress", "id": id, "percent": 1})
        send({"type": "fail", "id": id, "error": "after the end"})
    elif kind == 5:
        send({"type": "done", "id": id, "claim": "999"})
        send({"type": "done", "id": int(id)})
        send({"type": "done", "id": "-1"})
        send({"type": "done"})
        send(end)
    elif kind == 6:
        send({"type": "snooze", "id": id, "delay": "soon"})
    elif kind == 7:
        send({**end, "result": "\0"})
    elif kind == 8:
        for type in ["Done", "", "job", "welcome", "x" * 10000]:
            send({"type": type, "id": id})
        send(end)
    elif kind == 9:
        send(b'{"type": "done", "id": "' + id.encode() + b'", "result": ' + b"[" * 100000 + b"]" * 100000 + b"}\n")
    elif kind == 10:
        send({"type": "hello", "protocol": 1, "commands": ["echo"]})
    elif kind == 11:
        for type in ["step.get", "step.put", "spawn", "children", "enqueue", "dependencies"]:
            send({"type": type, "id": id})
            send({"type": type, "id": id, "call": 7})
            send({"type": type, "id": "0", "call": "a", "name": 7, "jobs": 7})
            send({"type": type, "call": "b", "name": "\0", "jobs": [7]})
        send(end)
    elif kind == 12:
        send({"type": "progress", "id": id, "percent": 1e308})
        send({"type": "progress", "id": id, "percent": "50", "note": {}})
        send({"type": "log", "message": 7, "level": "loud"})
        send({"type": "log", "id": "0", "message": "of another"})
        send({"type": "error", "error": {"a": 1}})
        send({"type": "pong"})
        send(end)
    elif kind == 13:
        connection.close()
        os._exit(0)
    elif kind == 14:
        send(end | {"id": id, "result": {"a": [1, 2, {"b": "x" * 2_000_000}]}})
    elif kind == 16:
        send({"type": "log", "message": "x" * 1_000_000})
        send(end)
    elif kind == 17:  # more calls than the worker makes at once; this host reads no reply before all are sent
        for call in range(100):
            send({"type": "enqueue", "call": str(call), "jobs": [{"command": ""}] * 10})
        send(end)
    elif kind == 18:  # messages that have to wait for a call, and are large
        send({"type": "step.get", "id": id, "call": "a", "name": "x"})
        for call in range(20):
            send({"type": "step.put", "id": id, "call": str(call), "name": "x" * 1_000_000, "output": 1})
        send(end)
    elif kind == 19:  # any line with a few bytes changed
        for _ in range(100):
            text = bytearray(json.dumps({**end, "result": {"a": [1, "b"]}}).encode())
            for _ in range(random.randrange(1, 4)):
                text[random.randrange(len(text))] = random.randrange(32, 127)
            if json_type(text) in (dict,) and b'"type": "done"' not in text:
                send(bytes(text) + b"\n")
        send(end)
    else:
        send(b"\n\r\n" * 1000 + b"[]\n")
