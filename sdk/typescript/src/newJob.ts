import { show } from "./json.js";
import { seconds } from "./outcomes.js";

/** Seconds, or an interval as Postgres spells it. */
export type Interval = number | string;
/** A Date, or a time as Postgres spells it. */
export type Time = Date | string;

/** The options of a new job, besides its command and its payload: the columns of `bugle.jobs`. */
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

/** A job to enqueue whose payload has the type that `Commands` gives its command. */
export type NewJobOf<Commands> = {
  [C in keyof Commands & string]: Options & { command: C } & ({} extends Commands[C]
      ? { payload?: Commands[C] }
      : { payload: Commands[C] });
}[keyof Commands & string];

/** The same as arguments. */
export type ArgumentsOf<Commands> = {
  [C in keyof Commands & string]: {} extends Commands[C]
    ? [command: C, payload?: Commands[C], options?: Options]
    : [command: C, payload: Commands[C], options?: Options];
}[keyof Commands & string];

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

/** The names of the options. */
export const OPTION_NAMES: readonly string[] = Object.keys(OPTIONS);

/** The job of the arguments of a function that enqueues one. */
export function oneJob(job: NewJob | string, payload: unknown, options: Options | undefined): NewJob {
  return typeof job === "string" ? { ...options, command: job, payload } : job;
}

/** A job as `bugle.enqueue_job` and the protocol take it. */
export function spelled(job: NewJob): Record<string, unknown> {
  const { command, payload = {}, ...options } = job;
  if (typeof command !== "string") throw new TypeError(`a command is a name, not ${show(command)}`);
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
  if (kind === "after") {
    if (!Array.isArray(value)) throw new TypeError(`after must be an array of ids, not ${show(value)}`);
    return value.map((one) => (typeof one === "object" && one !== null ? { ...one, job: id(one.job) } : id(one)));
  }
  return value;
}

/** As a number: a string would be the name of a job of the same workflow. */
function id(job: unknown): number {
  const isId = ["string", "number", "bigint"].includes(typeof job) && /^\d+$/.test(String(job));
  if (!isId || !Number.isSafeInteger(Number(job))) {
    throw new RangeError(`after takes the ids of jobs, which are integers up to 2^53, not ${show(job)}`);
  }
  return Number(job);
}
