// A host with something of everything, for the tests: see app.py for the same in Python.
import { appendFile, readFile, stat, writeFile } from "node:fs/promises";

import pg from "pg";

import { Fail, Host, Snooze, Wait } from "bugle-jobs";

interface Commands {
  send_mail: { to: string; subject?: string };
  charge: unknown;
  report: unknown;
  count: { page: number };
  passes_on: unknown;
  ask: unknown;
  later: { file: string };
  files: unknown;
  forever: unknown;
  book: { item: string };
  index: { n: number };
}

const pool = new pg.Pool({ connectionString: process.env["DATABASE_URL"] });
const host = new Host<Commands>({ concurrency: 8 });

const mail = (payload: unknown): { to: string; subject: string } => {
  const { to, subject = "hello" } = payload as { to?: unknown; subject?: string };
  if (typeof to !== "string") throw new Error("payload.to is missing");
  return { to, subject };
};

host.on("send_mail", mail, async (job) => {
  const { to, subject } = job.payload;
  job.progress(50, "connecting");
  job.log("a line");
  if (!to.includes("@")) throw new Fail("no such address", { code: "bad_address", retryable: false });
  return { sent_to: to, subject };
});

host.on("charge", async (job) => {
  const number = await job.step("card", () => `paid in attempt ${job.attempt}`);
  if (job.attempt === 1) throw new Error("lost");
  return number;
});

host.on("report", async (job) => {
  const children = await job.children<{ words: number }>();
  if (children.length === 0) return job.spawn([1, 2].map((page) => ({ command: "count", payload: { page } })));
  return children.map((child) => child.result?.words).sort();
});

host.on("count", (job) => ({ words: job.payload.page * 10 }));

host.on("passes_on", async (job) => BigInt(await job.enqueue("count", { page: 5 }, { priority: -1 })) > BigInt(job.id));

host.on("ask", (job) => (job.answer === undefined ? new Wait("token", { atMost: 600 }) : { answer: job.answer }));

host.on("later", async (job) => {
  await appendFile(job.payload.file, "ran\n");
  if ((await stat(job.payload.file)).size < 8) throw new Snooze(0);
  return job.attempt;
});

host.on("files", async (job) => {
  const file = `${await job.workspace()}/file`;
  await writeFile(file, "text");
  return readFile(file, "utf8");
});

host.on("forever", async (job) => {
  await new Promise((_, reject) => job.signal.addEventListener("abort", () => reject(job.signal.reason)));
});

host.on("book", async (job) => {
  const client = await pool.connect();
  try {
    await client.query("begin");
    await client.query("insert into bookings values ($1)", [job.payload.item]);
    await job.completeIn(client, { booked: job.payload.item });
    await client.query("commit");
  } catch (error) {
    await client.query("rollback");
    throw error;
  } finally {
    client.release();
  }
});

host.onMany("index", { most: 10 }, (jobs) =>
  jobs.map((job) => (job.payload.n % 2 ? new Fail("odd", { retryable: false }) : job.payload.n)),
);

await host.run();
await pool.end();
