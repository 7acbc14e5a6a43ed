import { toJson } from "./json.js";
import { type ArgumentsOf, type NewJob, type NewJobOf, type Options, oneJob, spelled } from "./newJob.js";
import { type Client, query } from "./sql.js";

export type { Client } from "./sql.js";

const JSON_PARAMETER = "cast(cast($1 as text) as jsonb)";
const ONE = `select bugle.enqueue_job(${JSON_PARAMETER}) as id`;
const EACH =
  `select bugle.enqueue_job(j.value) as id from jsonb_array_elements(${JSON_PARAMETER}) with ordinality j ` +
  "order by j.ordinality";
const CHUNK = 10_000;

/** The columns that a plain INSERT sets, with their types; the others take bugle.enqueue_job. */
const COLUMNS = new Map([
  ["command", "text"],
  ["payload", "jsonb"],
  ["queue", "text"],
  ["priority", "integer"],
  ["run_at", "timestamptz"],
  ["deadline", "timestamptz"],
  ["timeout", "interval"],
  ["max_attempts", "integer"],
  ["retry_policy", "text"],
  ["retry_delay", "interval"],
  ["headers", "jsonb"],
  ["order_key", "text"],
  ["limit_key", "text"],
  ["fair_key", "text"],
  ["steps", "text[]"],
  ["on_success", "text"],
  ["on_failure", "text"],
]);
const DEFAULTS = new Map([
  ["queue", "'default'"],
  ["priority", "0"],
  ["run_at", "now()"],
]);

let captured: ((job: NewJob) => string) | undefined;

/** For tests: pass jobs to this function instead of a database. Returns the function that was set before. */
export function capture(into: ((job: NewJob) => string) | undefined): ((job: NewJob) => string) | undefined {
  const before = captured;
  captured = into;
  return before;
}

/**
 * Enqueue a job in the transaction of this client, and return its id.
 *
 * `client` is a client of node-postgres, `sql` of postgres.js (or of its `begin`), a database or transaction of
 * Drizzle, a client or transaction of Prisma, or what has a `query` like node-postgres, such as TypeORM's
 * EntityManager. If a live job has the `unique_key`, or a job the `idempotency_key`, its id is returned. With the
 * type of your commands, as `enqueue<Commands>(…)`, the compiler checks the command and its payload.
 */
export async function enqueue(client: Client, job: NewJob): Promise<string>;
export async function enqueue(client: Client, command: string, payload?: unknown, options?: Options): Promise<string>;
export async function enqueue<Commands>(client: Client, job: NewJobOf<Commands>): Promise<string>;
export async function enqueue<Commands>(client: Client, ...job: ArgumentsOf<Commands>): Promise<string>;
export async function enqueue(
  client: Client,
  job: NewJob | string,
  payload?: unknown,
  options?: Options,
): Promise<string> {
  const one = oneJob(job, payload, options);
  const text = toJson(spelled(one));
  if (captured) return captured(one);
  return String((await query(client, ONE, [text]))[0]);
}

/** Enqueue many jobs in the transaction of this client. Returns their ids, in the order of the jobs. */
export async function enqueueMany(client: Client, jobs: readonly NewJob[]): Promise<string[]>;
export async function enqueueMany<Commands>(client: Client, jobs: readonly NewJobOf<Commands>[]): Promise<string[]>;
export async function enqueueMany(client: Client, jobs: readonly NewJob[]): Promise<string[]> {
  const all = jobs.map(spelled);
  const into = captured;
  if (into) return jobs.map((job) => into(job));
  const ids: string[] = [];
  const names = new Set(["command", "payload", ...all.flatMap(Object.keys)]);
  // to a recordset, the JSON value null is a column that is not set
  const isPlain = [...names].every((name) => COLUMNS.has(name)) && all.every((job) => job["payload"] !== null);
  const statement = isPlain ? insert([...names]) : EACH;
  for (let start = 0; start < all.length; start += CHUNK) {
    const rows = await query(client, statement, [toJson(all.slice(start, start + CHUNK))]);
    for (const id of rows) ids.push(String(id));
  }
  return ids;
}

function insert(names: string[]): string {
  const values = names.map((name) => (DEFAULTS.has(name) ? `coalesce(j.${name}, ${DEFAULTS.get(name)})` : `j.${name}`));
  const types = names.map((name) => `${name} ${COLUMNS.get(name)}`);
  return (
    `insert into bugle.jobs (${names.join(", ")}) select ${values.join(", ")} ` +
    `from jsonb_to_recordset(${JSON_PARAMETER}) as j (${types.join(", ")}) returning id`
  );
}
