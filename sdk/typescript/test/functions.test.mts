// New jobs become JSON, and functions can be tested without a worker.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import { enqueue, enqueueMany, Fail, Host, Snooze, Wait, type NewJob } from "bugle-jobs";
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
  assert.throws(() => build().on("flaky", () => 1), /has a function already/);
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
  await assert.rejects(sandbox.drain({ untilEmpty: true, most: 50 }), /job 1 \(again\) would be run/);
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
  assert.throws(() => sandbox.enqueue("count", {}, { after: ["1"] }), /does not know "after"/);
});

test("import and require find the same classes", () => {
  const required = createRequire(import.meta.url)("bugle-jobs") as typeof import("bugle-jobs");
  assert.equal(required.Fail, Fail);
  assert.equal(required.Host, Host);
});
