import pg from "pg";

import { placeOrder } from "./shop.js";

const client = new pg.Client(process.env.DATABASE_URL);
await client.connect();
await client.query(
  "create table if not exists shop_orders (id bigint generated always as identity, item text, booked_at timestamptz)",
);
await client.query("begin");
console.log(`order ${await placeOrder(client, "tea", "ada@example.org")} is placed`);
await client.query("commit");
await client.end();
