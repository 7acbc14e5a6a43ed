// What a host says and does on its socket.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { afterEach, beforeEach, test } from "node:test";

import { PROGRAM, ScriptedWorker } from "./scriptedWorker.mjs";

let worker: ScriptedWorker;
let isClosed: boolean;
beforeEach(async () => {
  worker = await ScriptedWorker.start();
  isClosed = false;
});
afterEach(async () => {
  if (!isClosed) await worker.close();
});

test("hello announces commands and concurrency", () => {
  const { type, protocol, concurrency, commands, language } = worker.hello;
  assert.deepEqual([type, protocol, concurrency], ["hello", 1, 3]);
  assert.ok(commands.includes("add"));
  assert.deepEqual(commands.find((one: any) => one.name === "index"), { name: "index", most: 100 });
  assert.match(language, /^node \d/);
});

test("what a function returns is the result", async () => {
  worker.job(1, "add", { a: 2, b: 3 });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: 5 });
});

test("a payload that the schema rejects is not retried", async () => {
  worker.job(1, "checked", { a: 2 });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: 4 });
  worker.job(2, "checked", { a: "2" });
  const bad = { type: "fail", code: "bad_payload", retryable: false };
  assert.deepEqual(await worker.receive(), { ...bad, id: "2", error: "a must be a number" });
  worker.job(3, "parsed", "four");
  assert.deepEqual(await worker.receive(), { type: "done", id: "3", result: 5 });
  worker.job(4, "parsed", 4);
  assert.deepEqual(await worker.receive(), { ...bad, id: "4", error: "payload.name: not a string" });
});

test("values that other parsers refuse harm no job", async () => {
  const long = `1${"0".repeat(5000)}`;
  const deep = `${"[".repeat(2000)}${"]".repeat(2000)}`;
  for (const [id, poison] of [long, deep].entries()) {
    worker.sendRaw(`{"type": "job", "id": "${id}", "claim": "1", "command": "add", "payload": ${poison}}\n`);
    assert.equal((await worker.receive()).id, String(id));
    const jobs = ["0", poison, "2"].map((payload, n) => `{"id": "${n}", "claim": "1", "payload": ${payload}}`);
    worker.sendRaw(`{"type": "jobs", "command": "keep", "jobs": [${jobs.join(",")}]}\n`);
    const answers = await worker.receiveAll(3);
    assert.deepEqual([answers["0"].result, answers["2"].result], [0, 2]);
  }
});

test("an error that cannot be sent is answered nonetheless", async () => {
  worker.job(1, "mute");
  assert.deepEqual((await worker.receive()).code, "bad_result");
});

test("the number of attempts is known", async () => {
  worker.send({ type: "job", id: "1", claim: "1", command: "attempts", attempt: 1, max_attempts: 5, payload: {} });
  assert.deepEqual((await worker.receive()).result, [1, 5]);
});

test("a function reports progress, logs and answers", async () => {
  worker.job(1, "greet", { name: "Ada" });
  assert.deepEqual(await worker.receive(), { type: "progress", id: "1", percent: 50, note: "thinking" });
  assert.deepEqual(await worker.receive(), { type: "log", id: "1", level: "info", message: "greets Ada" });
  const result = { greeting: "Hello, Ada!", id: "4611686018427387904" };
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result });
});

test("every outcome can be thrown or returned", async () => {
  const expected: Record<string, object> = {
    fail: { type: "fail", error: "no such address", code: "address", retryable: false },
    later: { type: "fail", error: "busy", retryable: true, retry_after: 60 },
    snooze: { type: "snooze", delay: 90 },
    wait: { type: "wait", token: "token-1", at_most: 3600 },
    skip: { type: "skip", reason: "nothing to do" },
    none: { type: "done" },
  };
  for (const [kind, answer] of Object.entries(expected)) {
    worker.job(1, "outcome", { kind });
    assert.deepEqual(await worker.receive(), { ...answer, id: "1" });
  }
});

test("an error fails the job and says where it was thrown", async () => {
  worker.job(1, "outcome", { kind: "bug" });
  const answer = await worker.receive();
  assert.deepEqual([answer.type, answer.code], ["fail", "TypeError"]);
  assert.match(answer.error, /^TypeError: Cannot read/);
  assert.match(answer.error, /program\.mjs/);
});

test("a result that is not JSON fails only its job", async () => {
  worker.job(1, "outcome", { kind: "function" });
  const answer = await worker.receive();
  assert.deepEqual([answer.type, answer.code, answer.retryable], ["fail", "bad_result", false]);
});

test("cancel aborts the signal of the job, if the claim is its own", async () => {
  worker.job(1, "forever");
  worker.send({ type: "cancel", id: "1", claim: "2", reason: "lost" });
  worker.send({ type: "cancel", id: "1", claim: "1", reason: "timeout" });
  worker.send({ type: "ping" });
  const answers = [await worker.receive(), await worker.receive()];
  assert.deepEqual(
    answers.sort((a, b) => a.type.localeCompare(b.type)),
    [{ type: "cancelled", id: "1", reason: "timeout" }, { type: "pong" }],
  );
});

test("a step is done once", async () => {
  worker.job(1, "charge");
  const get = await worker.receive();
  assert.deepEqual([get.type, get.id, get.name], ["step.get", "1", "card"]);
  worker.send({ type: "reply", call: get.call, value: { done: false } });
  const put = await worker.receive();
  assert.deepEqual([put.type, put.output], ["step.put", "charged"]);
  worker.send({ type: "reply", call: put.call });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: "charged" });

  worker.job(1, "charge");
  worker.send({ type: "reply", call: (await worker.receive()).call, value: { done: true, output: "before" } });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: "before" });
});

test("a call that is rejected fails the job with its code", async () => {
  worker.job(1, "enqueues");
  const call = await worker.receive();
  assert.deepEqual(call.jobs, [{ command: "add", payload: { a: 1 }, priority: -5 }]);
  worker.send({ type: "reply", call: call.call, error: "the database cannot be reached", code: "unavailable" });
  assert.equal((await worker.receive()).code, "unavailable");
});

test("children are spawned and found again", async () => {
  worker.job(1, "family");
  worker.send({ type: "reply", call: (await worker.receive()).call, value: [] });
  const spawn = await worker.receive();
  assert.deepEqual([spawn.type, spawn.jobs[0].queue], ["spawn", "q"]);
  worker.send({ type: "reply", call: spawn.call });
  assert.deepEqual(await worker.receive(), { type: "settled", id: "1" });

  worker.job(1, "family");
  const child = { id: "2", state: "completed", result: 2 };
  worker.send({ type: "reply", call: (await worker.receive()).call, value: [child] });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: [2] });
});

test("a batch gives each job its own outcome", async () => {
  const jobs = [0, 1, 2, 3].map((id) => ({ id: String(id), claim: "1", attempt: 1, payload: id }));
  worker.send({ type: "jobs", command: "index", jobs });
  const answers = await worker.receiveAll(4);
  assert.equal(answers["0"].result, "first");
  assert.equal(answers["2"].result, 2);
  assert.deepEqual([answers["1"].type, answers["3"].type], ["fail", "fail"]);
});

test("a payload of a batch that does not fit fails alone", async () => {
  worker.batch("pages", [{ text: "a" }, {}, { text: "bc" }]);
  const answers = await worker.receiveAll(3);
  assert.deepEqual([answers["0"].result, answers["2"].result], [1, 2]);
  const bad = { type: "fail", id: "1", code: "bad_payload", retryable: false };
  assert.deepEqual(answers["1"], { ...bad, error: "payload.text is missing" });
});

test("an error asks for calls of one for jobs without an outcome", async () => {
  worker.batch("broken", [0, 1, 2]);
  const answers = await worker.receiveAll(3);
  assert.deepEqual([answers["0"].type, answers["1"].alone, answers["2"].alone], ["done", true, true]);
  worker.batch("index", [0, 1]);
  assert.equal("alone" in (await worker.receiveAll(2))["1"], false);
});

test("lines may come in pieces and many at once", async () => {
  const line = '{"type":"job","id":"1","claim":"1","command":"add","attempt":1,"payload":{"a":1,"more":"é"}}\r\n';
  for (const byte of Buffer.from(line)) worker.sendRaw(Buffer.from([byte]));
  worker.sendRaw(`\n${line.replace('"1"', '"2"')}${line.replace('"1"', '"3"')}`);
  assert.deepEqual(Object.keys(await worker.receiveAll(3)), ["1", "2", "3"]);
});

test("a payload of many megabytes arrives", async () => {
  worker.job(1, "add", { a: 1, large: "x".repeat(20_000_000) });
  assert.deepEqual(await worker.receive(), { type: "done", id: "1", result: 2 });
});

test("unknown messages and commands are rejected by name, and the host continues", async () => {
  worker.send({ type: "sing", song: "x" });
  const error = await worker.receive();
  assert.deepEqual([error.type, error.code], ["error", "unknown_type"]);
  assert.match(error.error, /'sing'/);
  worker.job(1, "fly");
  assert.equal((await worker.receive()).code, "unknown_command");
  worker.send({ type: "ping", volume: 11 });
  assert.deepEqual(await worker.receive(), { type: "pong" });
});

test("the end of the connection ends the process", async () => {
  worker.job(1, "forever");
  worker.send({ type: "ping" });
  assert.deepEqual(await worker.receive(), { type: "pong" });
  assert.equal(await worker.close(), 0);
  isClosed = true;
});

test("without a worker it says how it is started", () => {
  const { BUGLE_HOST: _, ...env } = process.env;
  const ran = spawnSync(process.execPath, [PROGRAM], { env, encoding: "utf8" });
  assert.equal(ran.status, 1);
  assert.match(ran.stderr, /\[hosts\.app\]/);
  assert.doesNotMatch(ran.stderr, /^ +at /m, "no stack");
});
