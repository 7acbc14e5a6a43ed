// Statements on the caller's own client and in its transaction. Parameters are texts and cast in the statement, so that
// it does not matter which types a driver knows and which parsers an application has set.

import { show } from "./json.js";

type Parameter = string | null;

/** A client, or a transaction, of a driver or ORM that is known here. */
export type Client =
  // node-postgres, TypeORM
  | { query(text: string, values: any[]): Promise<any> }
  // postgres.js
  | { unsafe(text: string, values: any[]): PromiseLike<any> }
  // Prisma
  | { $queryRawUnsafe(text: string, ...values: any[]): PromiseLike<any> }
  // Drizzle
  | { execute(text: string): PromiseLike<any> };

/** Run a statement, and return the first column of its rows. */
export async function query(client: Client, statement: string, parameters: Parameter[]): Promise<unknown[]> {
  const found = await run(client, statement, parameters);
  const rows: unknown = Array.isArray(found) ? found : found?.rows;
  if (!Array.isArray(rows)) throw new TypeError("the client did not return rows");
  return rows.map((row) => (Array.isArray(row) ? row[0] : Object.values(row)[0]));
}

async function run(client: Client, statement: string, parameters: Parameter[]): Promise<any> {
  if (typeof client === "string") {
    throw new TypeError("this takes a connected client, not a URL: jobs are stored in the transaction of the client");
  }
  const isClient = client !== null && (typeof client === "object" || typeof client === "function");
  if (!isClient) throw new TypeError(`this takes a connected client, not ${show(client)}`);
  if ("unsafe" in client && typeof client.unsafe === "function") return client.unsafe(statement, parameters);
  if ("$queryRawUnsafe" in client) return client.$queryRawUnsafe(statement, ...parameters);
  if ("execute" in client && !("connect" in client)) return client.execute(inlined(statement, parameters));
  if ("query" in client && typeof client.query === "function") return client.query(statement, parameters);
  throw new TypeError(
    "this is not a client that is known here; with another driver, run select bugle.enqueue_job($1::jsonb)",
  );
}

// Drizzle takes text without parameters, or objects of its own, which would make it a dependency
function inlined(statement: string, parameters: Parameter[]): string {
  return statement.replace(/\$(\d+)/g, (_, number: string) => {
    const value = parameters[Number(number) - 1];
    if (value === null || value === undefined) return "null";
    // valid under either setting of standard_conforming_strings
    return `E'${value.replaceAll("\\", "\\\\").replaceAll("'", "''")}'`;
  });
}
