// With every driver: what is enqueued is there if the transaction commits, and not if it rolls back.
import assert from "node:assert/strict";

import { drizzle } from "drizzle-orm/node-postgres";
import { drizzle as drizzlePostgres } from "drizzle-orm/postgres-js";
import pg from "pg";
import postgres from "postgres";

import { type Client, enqueue, enqueueMany, type NewJob, type Options } from "bugle-jobs";
import { assertEnqueued } from "bugle-jobs/testing";

const url = process.env["DATABASE_URL"] as string;
const owner = new pg.Client(process.env["OWNER_URL"]);
await owner.connect();

class Undo extends Error {}

const many: NewJob[] = [0, 1, 2].map((order) => ({
  command: "ship",
  payload: { order },
  ...(order % 2 ? { queue: "slow" } : {}),
}));
const text = "it's \\ \"1\" % :x $1 ?";
const keyed: NewJob = { command: "ship", payload: { order: text }, unique_key: "key" };

async function use(client: Client, driver: string): Promise<void> {
  const id = BigInt(await enqueue(client, "ship", { order: driver }));
  const ids = await enqueueMany(client, many);
  assert.deepEqual(ids, [id + 1n, id + 2n, id + 3n].map(String));
  const [first, again] = await enqueueMany(client, [keyed, keyed]);
  assert.equal(first, again);
  assert.equal(await enqueue(client, keyed), first);
}

/** A transaction that is rolled back, and one that is not. */
async function check(driver: string, transaction: (work: (client: Client) => Promise<void>) => Promise<unknown>) {
  await owner.query("delete from bugle.jobs_live");
  for (const undo of [true, false]) {
    try {
      await transaction(async (client) => {
        await use(client, driver);
        if (undo) throw new Undo();
      });
    } catch (error) {
      if (!(error instanceof Undo)) throw error;
    }
  }
  const stored = "select payload->>'order' as order, queue, unique_key from bugle.jobs order by id";
  const { rows } = await owner.query(stored);
  assert.deepEqual(
    rows.map((row) => Object.values(row)),
    [
      [driver, "default", null],
      ["0", "default", null],
      ["1", "slow", null],
      ["2", "default", null],
      [text, "default", "key"],
    ],
  );
  console.log(driver);
}

const client = new pg.Client(url);
await client.connect();
await check("node-postgres", async (work) => {
  await client.query("begin");
  try {
    await work(client);
    await client.query("commit");
  } catch (error) {
    await client.query("rollback");
    throw error;
  }
});

const sql = postgres(url);
await check("postgres.js", (work) => sql.begin((transaction) => work(transaction)));

const pool = new pg.Pool({ connectionString: url });
await check("Drizzle, node-postgres", (work) => drizzle(pool).transaction((tx) => work(tx)));
await check("Drizzle, postgres.js", (work) => drizzlePostgres(sql).transaction((tx) => work(tx)));

// what a login may not do is an error of the driver, and the transaction is aborted
await assert.rejects(enqueue(client, "ship", {}, { max_attempts: 0 }), { code: "JB001" });

const run_at = new Date(Date.now() + 3_600_000);
const options: Options = {
  priority: -5,
  run_at,
  deadline: new Date(run_at.getTime() + 3_600_000),
  timeout: 300,
  max_attempts: 3,
  retry_policy: "fixed",
  retry_delay: "1.5 seconds",
  headers: { tenant: "a" },
  order_key: "o",
  limit_key: "l",
  fair_key: "f",
  on_success: "thank",
  on_failure: "apologise",
};
const names = Object.keys(options);
const ids = [
  await enqueue(client, "ship", {}, options),
  ...(await enqueueMany(client, [{ command: "ship", ...options }])),
];
const columns = names.map((name) => (["timeout", "retry_delay"].includes(name) ? `${name}::text` : name));
const { rows } = await owner.query(`select ${columns.join(", ")} from bugle.jobs where id = any ($1)`, [ids]);
const given = { ...options, timeout: "00:05:00", retry_delay: "00:00:01.5" };
assert.deepEqual(rows, [given, given]);
const waits = await enqueue(client, "ship", null, {
  after: ids,
  idempotency_key: "m",
  idempotency_ttl: 60,
  delay: 2,
  queue: "slow",
});
const { rows: found } = await owner.query("select state, payload from bugle.jobs where id = $1", [waits]);
assert.deepEqual(found, [{ state: "waiting", payload: null }]);
const chain = await enqueue(client, "order", {}, { steps: ["fetch", "ship"] });
const { rows: steps } = await owner.query("select steps from bugle.jobs where id = $1", [chain]);
assert.deepEqual(steps, [{ steps: ["fetch", "ship"] }]);
console.log("options");

// a test asks for what its transaction has enqueued
const { run_at: _, ...others } = options;
const mail: NewJob = { command: "mail", payload: { to: [{ name: "ada" }], n: 1 }, ...others, queue: "slow", delay: 60 };
const { deadline } = options;
const wanted: Options = { queue: "slow", timeout: 300, headers: { tenant: "a" }, deadline, delay: 60 };

async function asks(client: Client): Promise<void> {
  await enqueue(client, "mail", null);
  await enqueue(client, mail);
  const job = await assertEnqueued(client, "mail", { to: [{ name: "ada" }] }, wanted);
  assert.deepEqual([job.payload, job.timeout], [mail.payload, "00:05:00"]);
  assert.equal((await assertEnqueued(client, "mail", null)).payload, null);
  const missing: [string, unknown, Options?][] = [
    ["mail", { to: [{ name: "eve" }] }],
    ["mail", { n: true }],
    ["mail", {}, { timeout: 301 }],
    ["mail", {}, { delay: 90 }],
    ["mial", {}],
  ];
  for (const one of missing) {
    await assert.rejects(assertEnqueued(client, ...one), /is not enqueued; enqueued are:\n  {"command":"/);
  }
}

await owner.query("begin");
await asks(owner);
await owner.query("rollback");
const owners = postgres(process.env["OWNER_URL"] as string);
await assert.rejects(
  owners.begin(async (sql) => {
    await asks(sql);
    throw new Undo();
  }),
  Undo,
);
await assert.rejects(
  drizzlePostgres(owners).transaction(async (tx) => {
    await asks(tx);
    throw new Undo();
  }),
);
await owners.end();
console.log("asserted");

await Promise.all([owner.end(), client.end(), pool.end(), sql.end()]);
