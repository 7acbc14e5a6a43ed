// The application: an order and its jobs are stored together, or not at all.
import { type Client, enqueue } from "bugle-jobs";

/** Store an order, and what has to be done about it, in the transaction that this client has open. */
export async function placeOrder(
  client: Client & { query(text: string, values: unknown[]): Promise<{ rows: { id: string }[] }> },
  item: string,
  mail: string,
): Promise<number> {
  const { rows } = await client.query("insert into shop_orders (item) values ($1) returning id", [item]);
  const order = Number(rows[0]?.id);
  await enqueue(client, "book_stock", { order, item });
  await enqueue(client, "send_receipt", { order, to: mail }, { max_attempts: 5, unique_key: `receipt-${order}` });
  return order;
}
