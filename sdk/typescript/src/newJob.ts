import { seconds } from "./outcomes.js";

/** Seconds, or an interval as Postgres spells it. */
export type Interval = number | string;
/** A Date, or a time as Postgres spells it. */
export type Time = Date | string;

/** What a new job may set besides its command and its payload: the columns of `bugle.jobs`. */
export interface Options {
  queue?: string | null;
  priority?: number | null;
  run_at?: Time | null;
  delay?: Interval | null;
  deadline?: Time | null;
  timeout?: Interval | null;
  max_attempts?: number | null;
  retry_policy?: string | null;
  retry_delay?: Interval | null;
  headers?: Record<string, unknown> | null;
  unique_key?: string | null;
  on_conflict?: "keep" | "replace" | "move" | null;
  idempotency_key?: string | null;
  idempotency_ttl?: Interval | null;
  order_key?: string | null;
  limit_key?: string | null;
  fair_key?: string | null;
  steps?: readonly string[] | null;
  on_success?: string | null;
  on_failure?: string | null;
  /** The ids of jobs that must have ended first. */
  after?: readonly (string | number | bigint | { job: string | number | bigint; on_failure?: "fail" | "run" })[] | null;
}

/** A job to enqueue. */
export interface NewJob extends Options {
  command: string;
  /** Any JSON value. Default: `{}` */
  payload?: unknown;
}

type Kind = "plain" | "interval" | "time" | "after";

const OPTIONS: Record<keyof Options, Kind> = {
  queue: "plain",
  priority: "plain",
  run_at: "time",
  delay: "interval",
  deadline: "time",
  timeout: "interval",
  max_attempts: "plain",
  retry_policy: "plain",
  retry_delay: "interval",
  headers: "plain",
  unique_key: "plain",
  on_conflict: "plain",
  idempotency_key: "plain",
  idempotency_ttl: "interval",
  order_key: "plain",
  limit_key: "plain",
  fair_key: "plain",
  steps: "plain",
  on_success: "plain",
  on_failure: "plain",
  after: "after",
};

/** A job as `bugle.enqueue_job` and the protocol take it. */
export function spelled(job: NewJob): Record<string, unknown> {
  const { command, payload = {}, ...options } = job;
  if (typeof command !== "string") throw new TypeError(`a command is a name, not ${String(command)}`);
  const result: Record<string, unknown> = { command, payload };
  for (const [name, value] of Object.entries(options)) {
    const kind = OPTIONS[name as keyof Options] as Kind | undefined;
    if (kind === undefined) {
      throw new TypeError(`a job has no option "${name}"; there are ${Object.keys(OPTIONS).sort().join(", ")}`);
    }
    if (value === null || value === undefined) continue;
    result[name] = kind === "plain" ? value : convert(kind, name, value);
  }
  return result;
}

function convert(kind: Kind, name: string, value: unknown): unknown {
  if (kind === "interval" && typeof value === "number") return `${seconds(value, name)} seconds`;
  if (kind === "time" && value instanceof Date) {
    if (Number.isNaN(value.getTime())) throw new RangeError(`${name} is not a valid date`);
    return value.toISOString();
  }
  if (kind === "after" && Array.isArray(value)) {
    // an id: a string would be the name of a job of the same workflow
    const id = (one: unknown) => Number(one);
    return value.map((one) => (typeof one === "object" && one !== null ? { ...one, job: id(one.job) } : id(one)));
  }
  return value;
}
