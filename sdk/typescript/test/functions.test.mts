// New jobs become JSON, and functions can be tested without a worker.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import {
  type Around,
  enqueue,
  enqueueMany,
  Fail,
  Host,
  type NewJob,
  type Options,
  Snooze,
  Wait,
} from "bugle-jobs";
import { assertEnqueued, run, runMany, Sandbox } from "bugle-jobs/testing";

interface Commands {
  flaky: unknown;
  count: { page: number };
  report: unknown;
  ask: unknown;
  later: unknown;
  order: { item: string };
  index: number;
}

function build(): Host<Commands> {
  return new Host<Commands>()
    .on("flaky", (job) => {
      if (job.attempt < 3) throw new Error("not yet");
      return job.attempt;
    })
    .on("count", (job) => ({ words: job.payload.page * 10 }))
    .on("report", async (job) => {
      const children = await job.children<{ words: number }>();
      if (children.length > 0) return children.reduce((sum, child) => sum + (child.result?.words ?? 0), 0);
      return job.spawn([1, 2].map((page) => ({ command: "count", payload: { page } })));
    })
    .on("ask", (job) => (job.answer === undefined ? new Wait("t", { atMost: 60 }) : { answer: job.answer }))
    .on("later", (job) => {
      if (!job.headers["now"]) throw new Snooze(3600);
    })
    .on("order", async (job) => {
      job.progress(50);
      job.log("ordering");
      await job.step("stock", () => "taken");
      await job.enqueue("count", { page: 7 }, { unique_key: "one" });
    })
    .onMany("index", { most: 10 }, (jobs) => jobs.map((job) => (job.payload % 2 ? new Fail("odd") : job.payload)));
}

/** What a client is asked to run. */
function recorder(): { asked: [string, string][]; query(text: string, values: string[]): Promise<object> } {
  const asked: [string, string][] = [];
  return {
    asked,
    async query(text, values) {
      asked.push([text, values[0] as string]);
      return { rows: [{ id: "7" }] };
    },
  };
}

test("options have the names of columns", async () => {
  const client = recorder();
  const run_at = new Date("2026-11-18T09:00:00Z");
  const id = await enqueue(client, "ship", { order: 1n }, { queue: "slow", run_at, timeout: 300, after: ["4", 5n] });
  assert.equal(id, "7");
  assert.deepEqual(JSON.parse(client.asked[0]?.[1] as string), {
    command: "ship",
    payload: { order: "1" },
    queue: "slow",
    run_at: "2026-11-18T09:00:00.000Z",
    timeout: "300 seconds",
    after: [4, 5],
  });
});

test("what would be rejected later is rejected at once", async () => {
  const client = recorder();
  const wrong = { command: "ship", prio: 1 } as NewJob;
  await assert.rejects(enqueue(client, wrong), /no option "prio"; there are after, deadline/);
  await assert.rejects(enqueue(client, "ship", {}, { delay: -1 }), /delay must be a number of seconds/);
  await assert.rejects(enqueue(client, "ship", {}, { run_at: new Date("x") }), /run_at is not a valid date/);
  await assert.rejects(enqueue({} as never, "ship"), /not a client that is known here/);
  await assert.rejects(enqueue("postgres://" as never, "ship"), /takes a connected client, not a URL/);
  await assert.rejects(enqueue(undefined as never, "ship"), /takes a connected client, not undefined/);
  for (const job of ["first", 2 ** 53, -1, 1.5, { job: "first" }, null]) {
    await assert.rejects(enqueue(client, "ship", {}, { after: [job as never] }), /after takes the ids of jobs/);
  }
  await assert.rejects(enqueue(client, "ship", {}, { after: "4" as never }), /after must be an array/);
  assert.equal(client.asked.length, 0);
  assert.throws(() => build().on("flaky", () => 1), /is already registered/);
  assert.throws(() => new Host({ concurrency: 0 }), /between 1 and 10000/);
});

test("one run shows everything that the function did", async () => {
  const ran = await run(build(), "order", { item: "tea" });
  assert.deepEqual([ran.outcome, ran.progress, ran.logs], ["done", [{ percent: 50 }], ["ordering"]]);
  assert.deepEqual(ran.steps, { stock: "taken" });
  assert.deepEqual(ran.enqueued, [{ command: "count", payload: { page: 7 }, unique_key: "one" }]);

  const children = [{ id: "2", state: "completed", result: { words: 5 } }];
  assert.equal((await run(build(), "report", {}, { children })).result, 5);
  assert.equal((await run(build(), "flaky", {}, { attempt: 3 })).result, 3);
  assert.deepEqual((await runMany(build(), "index", [1, 2])).map((one) => one.outcome), ["fail", "done"]);
  await assert.rejects(run(new Host(), "fly"), /no function for "fly"; its commands: none/);
});

test("what cannot run jobs is rejected when it is registered", () => {
  const host = new Host() as any;
  for (const schema of [{}, undefined, null, 5, "schema", { "~standard": {} }]) {
    assert.throws(() => host.on("a", schema, () => 1), /a: a schema implements Standard Schema, has a method "parse"/);
    if (schema !== undefined) assert.throws(() => host.onMany("a", { most: 1, schema }, () => 1), /Standard Schema/);
  }
  assert.throws(() => host.on("a", 5), /a: this is not a function: 5/);
  assert.throws(() => host.on(() => 1), /a command is a name of 1 to 200 bytes/);
  assert.throws(() => host.onMany("m"), /write onMany\("m", \{ most: 100 \}, \(jobs\) => …\)/);
  assert.throws(() => host.onMany("m", { most: 0 }, () => 1), /most must be between 1 and 10000, not 0/);
  assert.equal(host.functions.size, 0);
});

test("payloads have the types of their commands", async () => {
  const host = new Host<Commands>();
  const page = (payload: unknown): { page: number } => payload as { page: number };
  const name = (payload: unknown): { page: string } => payload as { page: string };
  host.on("count", page, (job) => job.payload.page + 1);
  // @ts-expect-error: the schema makes something else of it
  assert.throws(() => host.on("count", name, (job) => job.payload.page));
  // @ts-expect-error: the same of a batch
  assert.throws(() => host.onMany("count", { most: 1, schema: name }, () => undefined));

  const client = recorder();
  await enqueue<Commands>(client, "count", { page: 1 }, { queue: "slow" });
  await enqueue<Commands>(client, "flaky");
  await enqueue<Commands>(client, { command: "order", payload: { item: "tea" } });
  await enqueueMany<Commands>(client, [{ command: "count", payload: { page: 1 } }, { command: "ask" }]);
  // @ts-expect-error: the page is a number
  await enqueue<Commands>(client, "count", { page: "1" });
  // @ts-expect-error: the payload is missing
  await enqueue<Commands>(client, "count");
  // @ts-expect-error: there is no such command
  await enqueue<Commands>(client, "cuont", { page: 1 });
  // @ts-expect-error: the item is missing
  await enqueueMany<Commands>(client, [{ command: "order", payload: {} }]);
  assert.equal(client.asked.length, 8);
});

test("what the worker would reject is an error in the function", async () => {
  assert.throws(() => new Fail("a", { code: 5 as never }), /the code of a failure must be a string, not 5/);
  assert.throws(() => new Fail("a", { retryable: "no" as never }), /retryable must be true or false, not "no"/);
  assert.throws(() => new Wait(7 as never), /the token must be a string/);
  for (const percent of ["half", 200, -1, NaN]) {
    const host = new Host().on("work", (job) => job.progress(percent as number));
    const ran = await run(host, "work");
    assert.deepEqual([ran.outcome, ran.code], ["fail", "RangeError"]);
    assert.match(ran.error as string, /a number from 0 to 100/);
  }
  const ran = await run(new Host().on("throws", () => Promise.reject({ a: 1 })), "throws");
  assert.deepEqual([ran.code, ran.error], ["thrown", 'this was thrown: {"a":1}']);
  await assert.rejects(run(build(), "flaky", {}, { atempt: 3 } as never), /a job has no field "atempt"; there are/);
});

test("a schema rejects a payload, and what fails in it for another reason is retried", async () => {
  const refused = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED", syscall: "connect" });
  const errors: [unknown, string, boolean][] = [
    [new Error("too short"), "bad_payload", false],
    [Object.assign(new TypeError("Invalid URL"), { code: "ERR_INVALID_URL" }), "bad_payload", false],
    ["too short", "bad_payload", false],
    [refused, "ECONNREFUSED", true],
    [new TypeError("fetch failed", { cause: refused }), "TypeError", true],
    [new Fail("busy", { code: "busy" }), "busy", true],
  ];
  for (const [error, code, retryable] of errors) {
    const schema = () => Promise.reject(error) as never;
    const host = new Host().on("one", schema, () => 1).onMany("many", { most: 10, schema }, () => undefined);
    for (const ran of [await run(host, "one"), (await runMany(host, "many", [{}]))[0]]) {
      assert.deepEqual([ran?.outcome, ran?.code, ran?.retryable], ["fail", code, retryable]);
    }
  }
});

test("a payload of a batch that does not fit fails alone", async () => {
  const page = (payload: unknown): { text: string } => {
    if (typeof (payload as { text?: unknown }).text !== "string") throw new Error("payload.text is missing");
    return payload as { text: string };
  };
  const sizes: number[] = [];
  const host = new Host().onMany("pages", { most: 10, schema: page }, (jobs) => {
    sizes.push(jobs.length);
    return jobs.map((job) => job.payload.text.length);
  });
  const [good, bad, other] = await runMany(host, "pages", [{ text: "a" }, {}, { text: "bc" }]);
  assert.deepEqual([good?.result, other?.result], [1, 2]);
  assert.deepEqual(
    [bad?.error, bad?.code, bad?.retryable, bad?.alone],
    ["payload.text is missing", "bad_payload", false, undefined],
  );
  await runMany(host, "pages", [{}, {}]);
  assert.deepEqual(sizes, [2]);
});

test("after an error the jobs of a batch are retried each in its own call", async () => {
  const sizes: number[] = [];
  const host = new Host().onMany("index", { most: 10 }, (jobs) => {
    sizes.push(jobs.length);
    return jobs.map((job) => job.payload.text.length);
  });
  const payloads = [{ text: "a" }, {}, { text: "bc" }];
  const ran = await runMany(host, "index", payloads);
  assert.deepEqual(ran.map((one) => [one.code, one.retryable, one.alone]), Array(3).fill(["TypeError", true, true]));

  sizes.length = 0;
  const sandbox = new Sandbox(host);
  const jobs = payloads.map((payload) => sandbox.enqueue("index", payload, { max_attempts: 2 }));
  await sandbox.drain({ untilEmpty: true });
  assert.deepEqual(sizes, [3, 1, 1, 1]);
  assert.deepEqual(jobs.map((job) => job.state), ["completed", "failed", "completed"]);

  const chosen = new Host().onMany("index", { most: 10 }, () => Promise.reject(new Fail("down", { retryAfter: 60 })));
  assert.deepEqual((await runMany(chosen, "index", [1, 2])).map((one) => one.alone), [undefined, undefined]);
});

test("what is around a function sees its jobs, its result and its error", async () => {
  const seen: unknown[] = [];
  const around: Around = async (jobs, run) => {
    seen.push(jobs.map((job) => job.command));
    try {
      return await run();
    } catch (error) {
      seen.push((error as Error).message);
      throw error;
    }
  };
  const host = new Host({ around })
    .on("plain", () => 1)
    .on("fails", () => {
      throw new Error("no");
    })
    .onMany("index", { most: 10 }, (jobs) => jobs.map((job) => job.payload));
  assert.equal((await run(host, "plain")).result, 1);
  assert.equal((await run(host, "fails")).outcome, "fail");
  assert.deepEqual((await runMany(host, "index", [1, 2])).map((ran) => ran.result), [1, 2]);
  assert.deepEqual(seen, [["plain"], ["fails"], "no", ["index", "index"]]);
});

test("a completion in a transaction is noted and its SQL is not run", async () => {
  const client = recorder();
  const host = new Host().on("book", async (job) => {
    await job.completeIn(client, { booked: job.payload.item });
    if (job.payload.item === "none") throw new Error("rolled back");
    return "ignored";
  });
  const ran = await run(host, "book", { item: "tea" });
  assert.deepEqual([ran.outcome, ran.result], ["settled", { booked: "tea" }]);
  const failed = await run(host, "book", { item: "none" });
  assert.deepEqual([failed.outcome, failed.result], ["fail", undefined]);

  const sandbox = new Sandbox(host);
  const alone = sandbox.enqueue("book", { item: "tea" });
  const chain = sandbox.enqueue("both", { item: "tea" }, { steps: ["book", "book"] });
  await sandbox.drain();
  assert.deepEqual([alone.state, alone.result], ["completed", { booked: "tea" }]);
  assert.deepEqual([chain.state, chain.context, chain.step], ["completed", { booked: "tea" }, 2]);
  assert.equal(client.asked.length, 0);
});

test("jobs of commands that the host does not have are left", async () => {
  const sandbox = new Sandbox(build());
  const unknown = sandbox.enqueue("fly");
  const chain = sandbox.enqueue("trip", { page: 1 }, { steps: ["count", "fly"] });
  const known = sandbox.enqueue("count", { page: 1 });
  assert.deepEqual(await sandbox.drain({ untilEmpty: true }), [chain, known]);
  assert.deepEqual([unknown.state, unknown.attempt], ["ready", 0]);
  assert.deepEqual([chain.state, chain.step, chain.attempt], ["ready", 1, 0]);
});

test("a unique job is kept, replaced or moved", async () => {
  const sandbox = new Sandbox(build());
  const add = (page: number, options: Options) => sandbox.enqueue("count", { page }, { unique_key: "a", ...options });
  const job = add(1, { delay: 60 });
  assert.equal(add(2, {}), job);
  assert.deepEqual([job.payload, job.state], [{ page: 1 }, "scheduled"]);
  add(2, { on_conflict: "replace" });
  assert.deepEqual([job.payload, job.state], [{ page: 2 }, "scheduled"]);
  add(3, { on_conflict: "move", delay: 30 });
  assert.deepEqual([job.payload, +job.run_at - +sandbox.now], [{ page: 2 }, 30_000]);
  assertEnqueued(sandbox, "count", { page: 2 }, { delay: 30 });
  add(3, { on_conflict: "move" });
  await sandbox.drain();
  assert.deepEqual(job.result, { words: 20 });
  assert.notEqual(add(3, { on_conflict: "move" }), job);
  assert.throws(() => add(3, { on_conflict: "lose" as never }), /on_conflict must be keep, replace or move, not lose/);
});

test("a job that runs is not replaced", async () => {
  const host = new Host().on("again", async (job) => {
    const { round } = job.payload;
    await enqueue({} as never, "again", { round: round + 1 }, { unique_key: "a", on_conflict: "replace" });
    return round;
  });
  const sandbox = new Sandbox(host);
  const job = sandbox.enqueue("again", { round: 1 }, { unique_key: "a" });
  await sandbox.drain();
  assert.deepEqual([job.result, job.payload, sandbox.jobs.length], [1, { round: 1 }, 1]);
});

test("a payload that contains another is found", () => {
  const to = [{ name: "ada", copy: true }, { name: "bob" }];
  const jobs = [{ command: "mail", payload: { to, n: 1 }, steps: ["a", "b"] }];
  for (const part of [{}, { to: [{ name: "bob" }] }, { to: [] }, { to: [{ copy: true, name: "ada" }], n: 1 }]) {
    assertEnqueued(jobs, "mail", part);
  }
  for (const part of [{ to: [{ name: "eve" }] }, { to: {} }, { n: true }, { n: null }, 5]) {
    assert.throws(() => assertEnqueued(jobs, "mail", part), /is not enqueued/);
  }
  assert.throws(() => assertEnqueued(jobs, "mail", {}, { steps: ["a"] }), /is not enqueued/);
  assertEnqueued([{ command: "count", payload: 5 }], "count");
});

test("a sandbox takes what is enqueued within it, even if that fails", async () => {
  const sandbox = new Sandbox(build());
  const client = recorder();
  const failing = sandbox.within(async () => {
    await enqueue(client, "flaky");
    throw new Error("the test fails");
  });
  await assert.rejects(failing, /the test fails/);
  assert.deepEqual([sandbox.jobs.length, client.asked.length], [1, 0]);
  await enqueue(client, "flaky");
  assert.deepEqual([sandbox.jobs.length, client.asked.length], [1, 1]);
});

test("a sandbox runs what is enqueued until nothing is left", async () => {
  const sandbox = new Sandbox(build()).enter();
  try {
    await enqueue({} as never, "flaky");
    await enqueueMany({} as never, [
      { command: "report" },
      { command: "order", payload: { item: "tea" } },
      { command: "order", payload: { item: "tea" } },
    ]);
    await enqueue({} as never, "chain", { page: 1 }, { steps: ["count", "ask"] });
  } finally {
    sandbox.leave();
  }

  await sandbox.drain();
  assert.equal(sandbox.job("1").state, "retrying");
  assert.equal(sandbox.job("5").state, "waiting");
  assert.equal(sandbox.job("2").result, 30);

  sandbox.resolve("5", "yes");
  await sandbox.drain({ untilEmpty: true });
  assert.equal(sandbox.job("1").result, 3);
  assert.deepEqual(sandbox.job("5").result, { words: 10, answer: "yes" });
});

test("time is under the control of the test", async () => {
  const sandbox = new Sandbox(build());
  const job = sandbox.enqueue("later", {}, { delay: 600 });
  assert.deepEqual(await sandbox.drain(), []);
  sandbox.advance(600);
  await sandbox.drain();
  assert.deepEqual([job.state, +job.run_at - +sandbox.now], ["scheduled", 3_600_000]);
});

test("a job that keeps failing fails for good", async () => {
  const sandbox = new Sandbox(build());
  const job = sandbox.enqueue("flaky", {}, { max_attempts: 2 });
  await sandbox.drain({ untilEmpty: true });
  assert.deepEqual([job.state, job.attempt, job.code], ["failed", 2, "Error"]);
});

test("what is enqueued can be asserted", async () => {
  const host = new Host().on("place", async (job) => {
    await enqueue({} as never, "count", { page: 1, item: job.payload.item }, { queue: "slow" });
  });
  const ran = await run(host, "place", { item: "tea" });
  const found = assertEnqueued(ran, "count", { item: "tea" }, { queue: "slow" });
  assert.deepEqual(found.payload, { page: 1, item: "tea" });
  assert.throws(() => assertEnqueued(ran, "count", { item: "jam" }), /"jam".* is not enqueued; enqueued are:\n.*"tea"/);

  const sandbox = new Sandbox(host.on("count", () => 1));
  sandbox.enqueue("place", { item: "jam" });
  await sandbox.drain();
  assertEnqueued(sandbox, "count", { item: "jam" });
  assert.deepEqual(sandbox.jobs.map((job) => job.state), ["completed", "completed"]);
});

test("batches run together as far as they are due", async () => {
  const sizes: number[] = [];
  const host = new Host().onMany("index", { most: 10 }, (jobs) => {
    sizes.push(jobs.length);
    return jobs.map((job) => (job.payload === 1 ? new Fail("odd") : job.payload));
  });
  const sandbox = new Sandbox(host);
  for (let number = 0; number < 12; number++) sandbox.enqueue("index", number);
  const later = sandbox.enqueue("index", 2, { delay: 60 });
  await sandbox.drain();
  assert.deepEqual([sizes, later.state], [[10, 2], "scheduled"]);
  assert.deepEqual([sandbox.job("2").state, sandbox.job("11").result], ["retrying", 10]);
});

test("a job can be told to stop", async () => {
  const host = new Host().on("waits", (job) => {
    return new Promise((_, reject) => job.signal.addEventListener("abort", () => reject(job.signal.reason)));
  });
  const ran = await run(host, "waits", {}, { cancelled: "timeout" });
  assert.deepEqual([ran.outcome, ran.reason], ["cancelled", "timeout"]);
});

test("a drain that does not come to an end says so", async () => {
  const sandbox = new Sandbox(new Host().on("again", () => new Snooze(60)));
  sandbox.enqueue("again");
  await assert.rejects(sandbox.drain({ untilEmpty: true, most: 50 }), /job 1 \(again\) has run 50 times and would be/);
  assert.equal(sandbox.job("1").runs.length, 50);
});

test("options do in a sandbox what they say, or are refused", async () => {
  const sandbox = new Sandbox(build());
  const one = sandbox.enqueue("count", { page: 1 }, { idempotency_key: "a", on_success: "later" });
  const two = sandbox.enqueue("flaky", {}, { max_attempts: 1, on_failure: "ask" });
  await sandbox.drain();
  assert.equal(sandbox.enqueue("count", { page: 2 }, { idempotency_key: "a" }), one);
  const follower: any = assertEnqueued(sandbox, "later", { job: Number(one.id), state: "completed" });
  assert.deepEqual(follower.payload.result, { words: 10 });
  assertEnqueued(sandbox, "ask", { job: Number(two.id), state: "failed" });
  assert.throws(() => sandbox.enqueue("count", {}, { after: ["1"] }), /does not support "after"/);
});

test("import and require find the same classes", () => {
  const required = createRequire(import.meta.url)("bugle-jobs") as typeof import("bugle-jobs");
  assert.equal(required.Fail, Fail);
  assert.equal(required.Host, Host);
});
