"""What a host says and does on its socket."""

import os
import subprocess
import sys
import unittest
from typing import Any, Dict, List

from scripted_worker import DEADLINE, ScriptedWorker

PROGRAM = """
import asyncio, dataclasses, threading
from bugle_jobs import AsyncJob, Fail, Host, Job, NewJob, Skip, Snooze, Wait

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

@dataclasses.dataclass
class Page:
    text: str

host = Host(concurrency=3)
gate = threading.Barrier(3, timeout=30)

@host.on("add")
def add(a: int, b: int = 1):
    return a + b

@host.on("greet")
async def greet(job, name: str):
    await job.progress(50, "thinking")
    job.log(f"greets {name}")
    return {"greeting": f"Hello, {name}!"}

@host.on("meet")
def meet():
    gate.wait()

@host.on("outcome")
def outcome(kind: str):
    if kind == "fail":
        raise Fail("no such address", code="address", retryable=False)
    if kind == "later":
        raise Fail("busy", retry_after=60)
    if kind == "snooze":
        raise Snooze(90)
    if kind == "wait":
        return Wait("token-1", at_most=3600)
    if kind == "skip":
        raise Skip("nothing to do")
    if kind == "bug":
        return {}["missing"]
    if kind == "object":
        return object()
    if kind == "mute":
        raise Mute()
    if kind == "half a character":
        raise Fail(chr(0xD800))
    if kind == "nan":
        return float("nan")
    return None

@host.on("forever")
async def forever(job):
    await asyncio.Event().wait()

@host.on("patient")
def patient(job):
    job.progress(1)
    # why: it is what the test ends
    job.sleep(3600)

@host.on("charge")
def charge(job: Job):
    return job.step("card", lambda: "charged")

@host.on("charge_async")
async def charge_async(job: AsyncJob):
    async def card():
        return "charged"
    return await job.step("card", card)

@host.on("family")
async def family(job: AsyncJob):
    children = await job.children()
    if children:
        return [child.result for child in children]
    await job.spawn([NewJob("add", {"a": 1}, queue="q")])

@host.on("enqueues")
def enqueues(job: Job):
    return job.enqueue("add", {"a": 1}, priority=-5)

@host.on_many("index", most=100)
def index(jobs):
    jobs[0].done("first")
    return [None] + [Fail("odd") if job.payload % 2 else job.payload for job in jobs[1:]]

@host.on_many("keep", most=10)
def keep(jobs):
    return [job.payload for job in jobs]

@host.on("attempts")
def attempts(job: Job):
    return [job.attempt, job.max_attempts]

@host.on_many("pages", most=10, payload=Page)
def pages(jobs):
    return [len(job.payload.text) for job in jobs]

@host.on_many("broken", most=10)
def broken(jobs):
    jobs[0].done("first")
    raise ValueError("odd")

@host.on_many("index_async", most=10)
async def index_async(jobs):
    await asyncio.Event().wait()

host.run()
"""

POISON = ["1" + "0" * 5000, "[" * 200_000 + "]" * 200_000, '{"a": [%s]}' % ("9" * 5000)]


class HostTest(unittest.TestCase):
    worker: ScriptedWorker

    def setUp(self) -> None:
        self.worker = ScriptedWorker(PROGRAM)
        self.addCleanup(self.worker.__exit__, None, None, None)

    def test_hello_announces_commands_and_concurrency(self) -> None:
        hello = self.worker.hello
        self.assertEqual((hello["type"], hello["protocol"], hello["concurrency"]), ("hello", 1, 3))
        self.assertIn("add", hello["commands"])
        self.assertIn({"name": "index", "most": 100}, hello["commands"])
        self.assertTrue(hello["language"].startswith("python 3."), hello)

    def test_a_payload_becomes_arguments_and_the_value_a_result(self) -> None:
        self.worker.job(1, "add", {"a": 2, "b": 3})
        self.assertEqual(self.worker.receive(), {"type": "done", "id": "1", "result": 5})
        self.worker.job(2, "add", {"a": 2, "unknown": True})
        self.assertEqual(self.worker.receive(), {"type": "done", "id": "2", "result": 3})

    def test_a_payload_that_does_not_fit_is_not_retried(self) -> None:
        self.worker.job(1, "add", {"a": "2"})
        answer = self.worker.receive()
        self.assertEqual((answer["type"], answer["code"], answer["retryable"]), ("fail", "bad_payload", False))
        self.assertEqual(answer["error"], "payload.a: expected an integer, not '2'")
        self.worker.job(2, "add", {})
        self.assertEqual(self.worker.receive()["error"], "payload.a is missing")

    def test_a_value_that_python_cannot_read_ends_its_own_job_alone(self) -> None:
        for number, poison in enumerate(POISON):
            job = '{"type": "job", "id": "%d", "claim": "1", "command": "add", "payload": %s, "timeout": 300}\n'
            self.worker.send_raw((job % (number, poison)).encode())
            answer = self.worker.receive()
            told = answer.pop("error")
            self.assertEqual(
                answer, {"type": "fail", "id": str(number), "code": "bad_payload", "retryable": False}, told
            )
            self.assertTrue(told.startswith("payload cannot be read: "), told)
        self.worker.job(9, "add", {"a": 1})
        self.assertEqual(self.worker.receive()["result"], 2)

    def test_a_value_that_python_cannot_read_ends_one_job_of_a_batch(self) -> None:
        for poison in POISON:
            payloads = ["0", poison, '{"a": [1, "]},\\"", 2]}']
            job = '{"id": "%d", "claim": "1", "payload": %s}'
            jobs = ", ".join(job % pair for pair in enumerate(payloads))
            self.worker.send_raw(('{"type": "jobs", "command": "keep", "jobs": [%s]}\n' % jobs).encode())
            answers = self.worker.receive_all(3)
            self.assertEqual((answers["0"]["type"], answers["0"]["result"]), ("done", 0))
            self.assertEqual((answers["1"]["type"], answers["1"]["code"]), ("fail", "bad_payload"))
            self.assertEqual(answers["2"]["result"], {"a": [1, ']},"', 2]})

    def test_a_reply_that_python_cannot_read_is_an_error_of_its_call(self) -> None:
        self.worker.job(1, "charge")
        call = self.worker.receive()["call"]
        reply = '{"type": "reply", "call": "%s", "value": {"done": true, "output": %s}}\n' % (call, POISON[0])
        self.worker.send_raw(reply.encode())
        answer = self.worker.receive()
        self.assertEqual((answer["type"], answer["code"]), ("fail", "unreadable"))

    def test_an_error_that_cannot_be_sent_is_answered_nonetheless(self) -> None:
        for id, kind in enumerate(["mute", "half a character"]):
            self.worker.job(id, "outcome", {"kind": kind})
            answer = self.worker.receive()
            self.assertEqual((answer["type"], answer["id"]), ("fail", str(id)))

    def test_the_number_of_attempts_is_known(self) -> None:
        self.worker.job(1, "attempts", max_attempts=5)
        self.assertEqual(self.worker.receive()["result"], [1, 5])

    def test_an_async_function_reports_progress_logs_and_answers(self) -> None:
        self.worker.job(1, "greet", {"name": "Ada"})
        messages = [self.worker.receive() for _ in range(3)]
        self.assertEqual(messages[0], {"type": "progress", "id": "1", "percent": 50, "note": "thinking"})
        self.assertEqual(messages[1], {"type": "log", "id": "1", "level": "info", "message": "greets Ada"})
        self.assertEqual(messages[2], {"type": "done", "id": "1", "result": {"greeting": "Hello, Ada!"}})

    def test_plain_functions_run_side_by_side(self) -> None:
        for id in (1, 2, 3):
            self.worker.job(id, "meet")  # each waits for the other two
        self.assertEqual(set(self.worker.receive_all(3)), {"1", "2", "3"})

    def test_every_outcome_can_be_raised_or_returned(self) -> None:
        expected: Dict[str, Dict[str, Any]] = {
            "fail": {"type": "fail", "error": "no such address", "code": "address", "retryable": False},
            "later": {"type": "fail", "error": "busy", "retryable": True, "retry_after": 60.0},
            "snooze": {"type": "snooze", "delay": 90.0},
            "wait": {"type": "wait", "token": "token-1", "at_most": 3600.0},
            "skip": {"type": "skip", "reason": "nothing to do"},
            "none": {"type": "done", "result": None},
        }
        for id, (kind, answer) in enumerate(expected.items()):
            self.worker.job(id, "outcome", {"kind": kind})
            self.assertEqual(self.worker.receive(), {**answer, "id": str(id)})

    def test_an_exception_fails_the_job_and_says_where_it_was_raised(self) -> None:
        self.worker.job(1, "outcome", {"kind": "bug"})
        answer = self.worker.receive()
        self.assertEqual((answer["type"], answer["code"]), ("fail", "KeyError"))
        self.assertTrue(answer["error"].startswith("KeyError: 'missing'\n"), answer)
        self.assertIn("in outcome", answer["error"])

    def test_a_result_that_is_not_json_fails_only_its_job(self) -> None:
        for id, kind in enumerate(("object", "nan")):
            self.worker.job(id, "outcome", {"kind": kind})
            answer = self.worker.receive()
            self.assertEqual((answer["type"], answer["code"], answer["retryable"]), ("fail", "bad_result", False))

    def test_a_cancelled_async_function_ends_at_its_next_await(self) -> None:
        self.worker.job(1, "forever")
        self.worker.send(type="cancel", id="1", claim="1", reason="timeout")
        self.worker.send(type="ping")
        answers = [self.worker.receive(), self.worker.receive()]
        self.assertIn({"type": "pong"}, answers)
        self.assertIn({"type": "cancelled", "id": "1", "reason": "timeout"}, answers)

    def test_a_cancel_with_another_claim_is_ignored(self) -> None:
        self.worker.job(1, "forever")
        self.worker.send(type="cancel", id="1", claim="2", reason="lost")
        self.worker.send(type="cancel", id="1", claim="1", reason="shutdown")
        self.assertEqual(self.worker.receive(), {"type": "cancelled", "id": "1", "reason": "shutdown"})

    def test_a_plain_function_that_sleeps_is_woken_by_cancel(self) -> None:
        self.worker.job(1, "patient")
        self.assertEqual(self.worker.receive()["type"], "progress")
        self.worker.send(type="cancel", id="1", claim="1", reason="cancelled")
        self.assertEqual(self.worker.receive(), {"type": "cancelled", "id": "1", "reason": "cancelled"})

    def test_a_step_is_done_once(self) -> None:
        for id, command in ((1, "charge"), (2, "charge_async")):
            self.worker.job(id, command)
            get = self.worker.receive()
            self.assertEqual((get["type"], get["id"], get["name"]), ("step.get", str(id), "card"))
            self.worker.send(type="reply", call=get["call"], value={"done": False})
            put = self.worker.receive()
            self.assertEqual((put["type"], put["output"]), ("step.put", "charged"))
            self.worker.send(type="reply", call=put["call"])
            self.assertEqual(self.worker.receive(), {"type": "done", "id": str(id), "result": "charged"})

            self.worker.job(id, command)
            get = self.worker.receive()
            self.worker.send(type="reply", call=get["call"], value={"done": True, "output": "before"})
            self.assertEqual(self.worker.receive(), {"type": "done", "id": str(id), "result": "before"})

    def test_a_call_that_is_rejected_fails_the_job_with_its_code(self) -> None:
        self.worker.job(1, "enqueues")
        call = self.worker.receive()
        self.assertEqual(call["jobs"], [{"command": "add", "payload": {"a": 1}, "priority": -5}])
        self.worker.send(type="reply", call=call["call"], error="the database cannot be reached", code="unavailable")
        answer = self.worker.receive()
        self.assertEqual((answer["type"], answer["code"]), ("fail", "unavailable"))

    def test_children_are_spawned_and_found_again(self) -> None:
        self.worker.job(1, "family")
        self.worker.send(type="reply", call=self.worker.receive()["call"], value=[])
        spawn = self.worker.receive()
        self.assertEqual((spawn["type"], spawn["jobs"][0]["queue"]), ("spawn", "q"))
        self.worker.send(type="reply", call=spawn["call"])
        self.assertEqual(self.worker.receive(), {"type": "settled", "id": "1"})

        self.worker.job(1, "family")
        child = {"id": "2", "state": "completed", "result": 2}
        self.worker.send(type="reply", call=self.worker.receive()["call"], value=[child])
        self.assertEqual(self.worker.receive(), {"type": "done", "id": "1", "result": [2]})

    def test_a_batch_gives_each_job_its_own_outcome(self) -> None:
        jobs = [{"id": str(id), "claim": "1", "attempt": 1, "payload": id} for id in range(4)]
        self.worker.send(type="jobs", command="index", jobs=jobs)
        answers = self.worker.receive_all(4)
        self.assertEqual(answers["0"], {"type": "done", "id": "0", "result": "first"})
        self.assertEqual(answers["2"], {"type": "done", "id": "2", "result": 2})
        self.assertEqual([answers[id]["type"] for id in ("1", "3")], ["fail", "fail"])

    def test_a_payload_of_a_batch_that_does_not_fit_fails_alone(self) -> None:
        self.batch("pages", [{"text": "a"}, {}, {"text": "bc"}])
        answers = self.worker.receive_all(3)
        self.assertEqual([answers[id].get("result") for id in ("0", "2")], [1, 2])
        self.assertEqual(
            answers["1"],
            {"type": "fail", "id": "1", "error": "payload.text is missing", "code": "bad_payload", "retryable": False},
        )

    def test_an_exception_asks_for_calls_of_one_for_jobs_without_an_outcome(self) -> None:
        self.batch("broken", [0, 1, 2])
        answers = self.worker.receive_all(3)
        self.assertEqual(answers["0"]["type"], "done")
        self.assertEqual([answers[id]["alone"] for id in ("1", "2")], [True, True])
        self.batch("index", [0, 1])
        self.assertNotIn("alone", self.worker.receive_all(2)["1"])

    def batch(self, command: str, payloads: List[Any]) -> None:
        jobs = [{"id": str(id), "claim": "1", "attempt": 1, "payload": one} for id, one in enumerate(payloads)]
        self.worker.send(type="jobs", command=command, jobs=jobs)

    def test_a_batch_is_cancelled_when_the_last_of_its_jobs_is(self) -> None:
        jobs = [{"id": str(id), "claim": "1", "attempt": 1, "payload": id} for id in range(2)]
        self.worker.send(type="jobs", command="index_async", jobs=jobs)
        self.worker.send(type="cancel", id="0", claim="1", reason="timeout")
        self.worker.send(type="ping")
        self.assertEqual(self.worker.receive(), {"type": "pong"})
        self.worker.send(type="cancel", id="1", claim="1", reason="shutdown")
        answers = self.worker.receive_all(2)
        self.assertEqual([answers[id]["reason"] for id in ("0", "1")], ["timeout", "shutdown"])

    def test_lines_may_come_in_pieces_and_many_at_once(self) -> None:
        line = '{"type":"job","id":"1","claim":"1","command":"add","attempt":1,"payload":{"a":1,"é":2}}\r\n'.encode()
        for byte in range(len(line)):
            self.worker.send_raw(line[byte : byte + 1])
        self.worker.send_raw(b"\n" + line.replace(b'"1"', b'"2"', 1) + line.replace(b'"1"', b'"3"', 1))
        self.assertEqual(set(self.worker.receive_all(3)), {"1", "2", "3"})

    def test_a_payload_of_many_megabytes_arrives(self) -> None:
        self.worker.job(1, "add", {"a": 1, "large": "x" * 20_000_000})
        self.assertEqual(self.worker.receive(), {"type": "done", "id": "1", "result": 2})

    def test_unknown_messages_are_rejected_by_name_and_unknown_fields_ignored(self) -> None:
        self.worker.send(type="sing", song="x")
        answer = self.worker.receive()
        self.assertEqual((answer["type"], answer["code"]), ("error", "unknown_type"))
        self.assertIn("'sing'", answer["error"])
        self.worker.send(type="ping", volume=11)
        self.assertEqual(self.worker.receive(), {"type": "pong"})

    def test_a_command_that_it_does_not_have_fails_and_the_host_goes_on(self) -> None:
        self.worker.job(1, "fly")
        self.assertEqual(self.worker.receive()["code"], "unknown_command")
        self.worker.job(2, "add", {"a": 1})
        self.assertEqual(self.worker.receive()["type"], "done")

    def test_the_end_of_the_connection_ends_the_process_even_if_functions_hang(self) -> None:
        self.worker.job(1, "forever")
        self.worker.job(2, "patient")
        self.assertEqual(self.worker.receive()["type"], "progress")
        self.assertEqual(self.worker.close(), 0)

    def test_an_error_from_the_worker_is_shown(self) -> None:
        self.worker.send(type="error", error="the job is not held", code="not_held", id="9")
        self.worker.send(type="ping")
        self.assertEqual(self.worker.receive(), {"type": "pong"})
        self.assertIn("the job is not held", self.worker.output())

    def test_without_a_worker_it_says_how_it_is_started(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "BUGLE_HOST"}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=DEADLINE
        )
        self.assertEqual(ran.returncode, 1)
        self.assertIn("[hosts.app]", ran.stderr)
        self.assertIn(f'program = ["{sys.executable}", ', ran.stderr)


if __name__ == "__main__":
    unittest.main()
