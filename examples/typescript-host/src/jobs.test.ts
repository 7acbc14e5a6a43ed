// Tests without a worker and without a database: npm test
import assert from "node:assert/strict";
import { test } from "node:test";

import { run, Sandbox } from "bugle-jobs/testing";

import { host, pool } from "./jobs.js";
import { placeOrder } from "./shop.js";

test("an order is booked and gets a receipt", async () => {
  const sandbox = new Sandbox(host);
  // stands for the database of the shop; what is enqueued goes to the sandbox
  const client = { query: async () => ({ rows: [{ id: "7" }] }) };
  await sandbox.within(() => placeOrder(client, "tea", "ada@example.org"));

  assert.deepEqual(sandbox.jobs.map((job) => job.command), ["book_stock", "send_receipt"]);
  assert.deepEqual(sandbox.job("1").payload, { order: 7, item: "tea" });
});

test("a booking and the completion of its job are one transaction", async (context) => {
  const asked: string[] = [];
  const client = { query: async (text: string) => asked.push(text.split(" ")[0] as string), release: () => {} };
  context.mock.method(pool, "connect", async () => client);
  const ran = await run(host, "book_stock", { order: 7, item: "tea" });

  // completeIn noted the completion, and ran no statement of its own
  assert.deepEqual(asked, ["begin", "update", "commit"]);
  assert.deepEqual([ran.outcome, ran.result], ["settled", { booked: "tea" }]);
});

test("a receipt keeps its number when it is sent again", async () => {
  const sandbox = new Sandbox(host);
  const job = sandbox.enqueue("send_receipt", { order: 7, to: "ada@example.org" });

  await sandbox.drain();
  assert.deepEqual([job.state, job.steps], ["retrying", { number: "R-00007" }]);
  sandbox.advance(1);
  await sandbox.drain();
  assert.deepEqual(job.result, { receipt: "R-00007", sent_to: "ada@example.org" });
});

test("an invalid address is not tried again", async () => {
  const ran = await run(host, "send_receipt", { order: 7, to: "nobody" });

  assert.deepEqual([ran.outcome, ran.code, ran.retryable], ["fail", "bad_address", false]);
});
