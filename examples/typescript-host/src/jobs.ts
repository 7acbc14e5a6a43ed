// What a worker runs, with the program in main.ts.
import pg from "pg";

import { Fail, Host } from "bugle-jobs";

interface Commands {
  book_stock: { order: number; item: string };
  send_receipt: { order: number; to: string };
}

export const host = new Host<Commands>();
export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });

// the booking and the completion of the job are one transaction: run twice, booked once
host.on("book_stock", async (job) => {
  const client = await pool.connect();
  try {
    await client.query("begin");
    await client.query("update shop_orders set booked_at = now() where id = $1", [job.payload.order]);
    await job.completeIn(client, { booked: job.payload.item });
    await client.query("commit");
  } catch (error) {
    await client.query("rollback");
    throw error;
  } finally {
    client.release();
  }
});

host.on("send_receipt", async (job) => {
  const { order, to } = job.payload;
  if (!to.includes("@")) throw new Fail(`${to} is not an address`, { code: "bad_address", retryable: false });
  // the same in each attempt
  const receipt = await job.step("number", async () => `R-${String(order).padStart(5, "0")}`);
  if (job.attempt === 1) throw new Fail("the mail server is busy", { retryAfter: 1 });
  return { receipt, sent_to: to };
});
