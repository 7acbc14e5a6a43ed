"""A host for the tests: everything that protocol 1 has, and things that no host should do."""
import json, os, queue, socket, sys, threading, time

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["BUGLE_HOST"])
reader = connection.makefile("rb")
writing = threading.Lock()
replies, numbers, cancelled = {}, iter(range(1, 1 << 30)), {}


def send(type, **fields):
    text = json.dumps({"type": type, **fields}) + "\n"
    with writing:
        connection.sendall(text.encode())


def call(type, **fields):
    name = str(next(numbers))
    replies[name] = queue.Queue()
    send(type, call=name, **fields)
    reply = replies[name].get()
    del replies[name]
    return reply


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)  # why: this is the pause between two looks


def run(job):
    id, command, payload = job["id"], job["command"], job["payload"]
    same = {"id": id, "claim": job["claim"]}
    if command == "echo":
        send("done", result=payload, **same)
    elif command == "tell":
        send("done", result={**job, "pid": os.getpid(), "environment": dict(os.environ)}, **same)
    elif command == "say":
        send(payload.pop("type"), **payload, **same)
    elif command == "write":
        with open(os.path.join(payload["folder"], "pids"), "a") as file:
            file.write(f"{os.getpid()} {id}\n")
        send("progress", id=id, percent=50, note="half")
        wait_for(os.path.join(payload["folder"], "release"))
        send("done", **same)
    elif command == "until_cancelled":
        send("progress", id=id, percent=1, note="running")
        cancelled[id] = queue.Queue()
        reason = cancelled[id].get()
        send("log", id=id, level="warn", message=f"cancelled: {reason}")
        send("fail", error=f"stopped: {reason}", **same)
    elif command == "ignore":
        send("progress", id=id, percent=1, note="running")
    elif command == "freeze":
        send("progress", id=id, percent=1, note="running")
        os.kill(os.getpid(), 19)
    elif command == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(payload.get("code", 7))
    elif command == "step":
        before = call("step.get", id=id, name="charge")["value"]
        if not before["done"]:
            call("step.put", id=id, name="charge", output={"receipt": 17})
            send("fail", error="after the step", **same)
        else:
            send("done", result=before["output"], **same)
    elif command == "parent":
        children = call("children", id=id)["value"]
        if children:
            send("done", result=[child["result"] for child in children], **same)
        else:
            call("spawn", id=id, jobs=[{"command": "echo", "payload": n} for n in payload])
            send("settled", **same)
    elif command == "enqueue":
        send("done", result=call("enqueue", jobs=payload), **same)
    elif command == "raw":
        with writing:
            connection.sendall(payload.encode())
        send("done", **same)
    elif command == "large":
        with writing:
            connection.sendall(b"x" * (10 * 1024 * 1024))


commands = os.environ.get("ANNOUNCE", "").split()
if "ANNOUNCE_FILE" in os.environ:
    commands = open(os.environ["ANNOUNCE_FILE"]).read().split()
commands = [{"name": name, "most": 10} if name.startswith("batch") else name for name in commands]
send("hello", protocol=1, commands=commands, concurrency=int(os.environ.get("CONCURRENCY", 4)), language="python")
errors = []
for line in reader:
    message = json.loads(line)
    if message["type"] == "jobs":
        has_failed = any(job["payload"] == "bad" for job in message["jobs"])
        for job in message["jobs"]:
            same = {"id": job["id"], "claim": job["claim"]}
            if has_failed:
                send("fail", error="the call has failed", code="call", alone=True, **same)
            else:
                send("done", result=len(message["jobs"]), **same)
    elif message["type"] == "job":
        threading.Thread(target=run, args=[message], daemon=True).start()
    elif message["type"] == "cancel" and message["id"] in cancelled:
        cancelled[message["id"]].put(message["reason"])
    elif message["type"] == "ping":
        send("pong")
    elif message["type"] == "reply":
        replies[message["call"]].put(message)
    elif message["type"] == "error":
        print("error", message["code"], message["error"], file=sys.stderr, flush=True)
print("told to exit", flush=True)
