// Enqueue in the transaction of the business: both are there, or neither.
//
//   npm install && DATABASE_URL=postgres://app:secret@localhost/shop node enqueue.js
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  await client.query("create table if not exists orders (id bigint generated always as identity, item text not null)");

  const kept = await placeOrder("tea", "Ada");
  console.log(`order ${kept.order} and job ${kept.job} are committed`);

  const undone = await placeOrder("coffee", "Bob", { stock: 0 });
  if (await job(undone.job)) throw new Error(`job ${undone.job} is there, though its transaction was rolled back`);
  console.log(`order ${undone.order} was rolled back, and job ${undone.job} with it`);

  const ended = await end(kept.job);
  console.log(`job ${kept.job} is ${ended.state}: ${JSON.stringify(ended.result)}`);
  if (ended.state !== "completed") throw new Error(ended.last_error);
} finally {
  await client.end();
}

/** The order and the job that follows from it, in one transaction. */
async function placeOrder(item, name, { stock = 1 } = {}) {
  await client.query("begin");
  const order = await insert("insert into orders (item) values ($1) returning id", [item]);
  const job = await insert("insert into bugle.jobs (command, payload) values ('hello', $1) returning id", [{ name, order }]);
  await client.query(stock > 0 ? "commit" : "rollback");
  return { order, job };
}

// node-postgres gives a bigint as a string, so that no digit is lost
async function insert(sql, values) {
  return (await client.query(sql, values)).rows[0].id;
}

async function job(id) {
  return (await client.query("select state, result, last_error from bugle.job($1)", [id])).rows[0];
}

/** Waits until a job has ended. It takes a worker that serves the command hello, such as that of "bugle dev". */
async function end(id) {
  for (let tries = 0; tries < 600; tries++) {
    const found = await job(id);
    if (["completed", "failed", "cancelled"].includes(found?.state)) return found;
    await sleep(50);
  }
  throw new Error(`job ${id} has not ended after 30 seconds: does a worker serve the command hello?`);
}
