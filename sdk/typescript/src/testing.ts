/**
 * Tests of functions without a worker and without a database.
 *
 * ```ts
 * const ran = await run(host, "send_mail", { to: "ada@example.org" });
 * assert.deepEqual(ran.result, { sent_to: "ada@example.org" });
 *
 * const sandbox = new Sandbox(host);
 * await sandbox.within(() => placeOrder(client));     // calls enqueue(client, …): the job goes to the sandbox
 * await sandbox.drain();
 * assert.equal(sandbox.jobs[0].state, "completed");
 * ```
 *
 * @packageDocumentation
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { capture } from "./enqueue.js";
import type { Host } from "./host.js";
import { type Channel, type Ended, Job, type JobMessage, type Reply } from "./job.js";
import { toJson } from "./json.js";
import { type NewJob, type Options, OPTION_NAMES, oneJob, spelled } from "./newJob.js";
import { type Client, query } from "./sql.js";
import { answer, type Registered, runBatch, runOne } from "./run.js";

/** The effects of one run of a function. */
export interface Ran {
  outcome: "done" | "fail" | "snooze" | "wait" | "skip" | "cancelled" | "settled";
  /** As JSON that was stored and read again. Also that of `completeIn`, with the outcome `settled`. */
  result?: any;
  error?: string;
  code?: string;
  retryable?: boolean;
  retry_after?: number;
  /** Whether the job is retried in a call of its own, because an error failed the whole batch. */
  alone?: boolean;
  delay?: number;
  token?: string;
  at_most?: number;
  reason?: string;
  progress: { percent: number; note?: string }[];
  logs: string[];
  /** The steps that are done, with their outputs, including those that were done before. */
  steps: Record<string, any>;
  enqueued: NewJob[];
  spawned: NewJob[];
}

/** The circumstances of a run: fields of the job, and answers of the worker. */
export interface Given {
  attempt?: number;
  headers?: Record<string, unknown>;
  answer?: unknown;
  context?: Record<string, unknown>;
  /** Steps that are done already, with their outputs. */
  steps?: Record<string, unknown>;
  children?: Ended[];
  dependencies?: Ended[];
  max_attempts?: number;
  /** The job should stop, for this reason, as soon as its function waits. */
  cancelled?: "timeout" | "cancelled" | "lost" | "shutdown";
}

interface Internal extends Given {
  id?: string;
  step?: JobMessage["step"];
  add?: (job: NewJob) => string;
}

const FIELDS =
  "attempt headers answer context steps children dependencies max_attempts cancelled queue traceparent timeout " +
  "deadline id step add";

class Recorder implements Channel {
  readonly ran: Ran;
  readonly ended: Promise<void>;
  readonly #given: Internal;
  #end!: () => void;

  constructor(given: Internal) {
    this.#given = given;
    this.ran = { outcome: "done", progress: [], logs: [], steps: { ...given.steps }, enqueued: [], spawned: [] };
    this.ended = new Promise((resolve) => (this.#end = resolve));
  }

  send(message: Record<string, unknown>): void {
    if (message["type"] === "log") this.ran.logs.push(String(message["message"]));
  }

  progress(_: string, message: Record<string, unknown>): void {
    const { percent, note } = copy(message);
    this.ran.progress.push(note === undefined ? { percent } : { percent, note });
  }

  async call(message: Record<string, unknown>): Promise<Reply> {
    return { value: this.#answer(copy(message)) };
  }

  #answer(message: any): unknown {
    switch (message.type) {
      case "step.get":
        return { done: message.name in this.ran.steps, output: this.ran.steps[message.name] };
      case "step.put":
        if (message.error === undefined) this.ran.steps[message.name] = message.output;
        return undefined;
      case "spawn":
        this.ran.spawned.push(...message.jobs);
        return undefined;
      case "enqueue":
        return message.jobs.map((job: NewJob) => {
          this.ran.enqueued.push(job);
          return this.#given.add?.(job) ?? String(this.ran.enqueued.length);
        });
      case "children":
        return this.#given.children ?? [];
      default:
        return this.#given.dependencies ?? [];
    }
  }

  takesCompletion(result: unknown): boolean {
    this.ran.result = copy(result ?? null);
    return true;
  }

  settle(job: Job, result: unknown, error: unknown, isError: boolean): void {
    if (job.isAnswered) return;
    job.isAnswered = true;
    const { type, id: _, claim: __, ...fields } = JSON.parse(answer(job, result, error, isError));
    if (type !== "settled") delete this.ran.result; // the transaction of completeIn was rolled back
    Object.assign(this.ran, fields, { outcome: type });
    this.#end();
  }
}

function copy<T>(value: T): any {
  return JSON.parse(toJson(value));
}

function registeredIn(host: Host<any>, command: string): Registered {
  const found = host.functions.get(command);
  if (found === undefined) {
    const known = [...host.functions.keys()].sort().join(", ") || "none";
    throw new Error(`the host has no function for "${command}"; its commands: ${known}`);
  }
  return found;
}

/** Jobs of one command, with what each of them finds. */
interface Task {
  payload: unknown;
  given: Internal;
}

async function runAll(
  host: Host<any>,
  command: string,
  payloads: readonly unknown[],
  given: Internal,
): Promise<Ran[]> {
  const known = FIELDS.split(" ");
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`a job has no field "${unknown}"; there are ${known.join(", ")}`);
  return runTasks(
    host,
    command,
    payloads.map((payload) => ({ payload, given })),
  );
}

async function runTasks(host: Host<any>, command: string, tasks: readonly Task[]): Promise<Ran[]> {
  const registered = registeredIn(host, command);
  const folder = await mkdtemp(join(tmpdir(), "bugle-"));
  try {
    const recorders = tasks.map(({ given }) => new Recorder(given));
    const jobs = tasks.map(({ payload, given }, index) => {
      const { steps: _, children: __, dependencies: ___, add: ____, cancelled: _____, ...fields } = given;
      const id = String(index + 1);
      const message = { id, claim: "1", command, attempt: 1, ...fields, payload: copy(payload ?? null) };
      return new Job({ ...message, workdir: join(folder, id) }, recorders[index] as Recorder);
    });
    // what the function enqueues by itself, and not through the job, is seen too; of a batch, by the first job
    const enqueued = recorders[0]?.ran.enqueued ?? [];
    const before = capture((job) => {
      const one = copy(spelled(job)) as NewJob;
      enqueued.push(one);
      return (tasks[0]?.given.add ?? before)?.(one) ?? String(enqueued.length);
    });
    try {
      if (registered.most !== undefined) {
        void runBatch(registered, jobs);
      } else {
        runOne(registered, jobs[0] as Job);
      }
      tasks.forEach(({ given }, index) => {
        if (given.cancelled !== undefined) jobs[index]?.stop(given.cancelled);
      });
      await Promise.all(recorders.map((recorder) => recorder.ended));
    } finally {
      capture(before);
    }
    return recorders.map((recorder) => recorder.ran);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Run the function of a command on a payload. */
export async function run<C extends Record<keyof C, unknown>, K extends keyof C & string>(
  host: Host<C>,
  command: K,
  payload?: C[K],
  given: Given = {},
): Promise<Ran> {
  return (await runAll(host, command, [payload === undefined ? {} : payload], given))[0] as Ran;
}

/** Run the function of a batch on jobs with these payloads. */
export async function runMany<C extends Record<keyof C, unknown>, K extends keyof C & string>(
  host: Host<C>,
  command: K,
  payloads: readonly C[K][],
  given: Given = {},
): Promise<Ran[]> {
  return runAll(host, command, payloads, given);
}

/** Whether one JSON value contains another, as the operator `@>` of jsonb has it. */
function contains(whole: any, part: any): boolean {
  if (Array.isArray(whole) && Array.isArray(part)) {
    return part.every((value) => whole.some((one) => contains(one, value)));
  }
  const isObject = (value: any) => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject(whole) || !isObject(part)) return whole === part;
  return Object.entries(part).every(([name, value]) => name in whole && contains(whole[name], value));
}

/** Whether a payload is wanted at all: `{}` is any. */
function isAny(payload: any): boolean {
  return typeof payload === "object" && payload !== null && !Array.isArray(payload) && toJson(payload) === "{}";
}

function fits({ command, payload, ...options }: any, found: any): boolean {
  if (command !== found.command || !(isAny(payload) || contains(found.payload, payload))) return false;
  return Object.entries(options).every(([name, value]) =>
    name === "headers" ? contains(found[name], value) : toJson(value) === toJson(found[name] ?? null),
  );
}

/**
 * The first job of this command with these options, whose payload contains this one, as `@>` of jsonb has it.
 *
 * `where` is a sandbox, what `run` returned, or an array of jobs; or a client, in whose transaction jobs were enqueued:
 * there it finds jobs that have not ended, and returns a promise. If there is none, the error says what is enqueued.
 */
export function assertEnqueued(
  where: Sandbox | Ran | readonly NewJob[],
  command: string,
  payload?: unknown,
  options?: Options,
): NewJob;
export function assertEnqueued(
  where: Client,
  command: string,
  payload?: unknown,
  options?: Options,
): Promise<NewJob>;
export function assertEnqueued(
  where: Sandbox | Ran | readonly NewJob[] | Client,
  command: string,
  payload: unknown = {},
  options: Options = {},
): NewJob | Promise<NewJob> {
  const wanted = copy(spelled({ ...options, command, payload }));
  let jobs: readonly NewJob[];
  if (where instanceof Sandbox) {
    jobs = where.jobs.map((job) => ({ ...job.options, command: job.command, payload: job.payload }));
  } else if (Array.isArray(where)) {
    jobs = where;
  } else if ("spawned" in where) {
    jobs = [...where.enqueued, ...where.spawned];
  } else {
    return inDatabase(where as Client, wanted);
  }
  return first(wanted, jobs.map((job) => [job, fits(wanted, copy(spelled(job)))]));
}

/** Ask a database. Postgres compares, because 60 seconds are a minute. */
async function inDatabase(client: Client, wanted: any): Promise<NewJob> {
  const { command: _, payload, ...options } = wanted;
  const conditions = ["j.command = w.command"];
  const parameters = [toJson(wanted)];
  if (!isAny(payload)) conditions.push("coalesce(j.payload, 'null') @> coalesce(w.payload, 'null')");
  for (const [name, value] of Object.entries(options)) {
    if (name === "after" || name === "on_conflict") {
      throw new TypeError(`what a job was enqueued with as "${name}" is not stored with it`);
    } else if (name === "headers") {
      conditions.push("j.headers @> w.headers");
    } else if (name === "delay") {
      parameters.push(String(value));
      const delay = `cast(cast($${parameters.length} as text) as interval)`;
      conditions.push(`abs(extract(epoch from j.run_at - j.created_at - ${delay})) <= 1`);
    } else {
      conditions.push(`j.${name} is not distinct from w.${name}`);
    }
  }
  const rows = await query(
    client,
    `select cast(jsonb_build_object('fits', ${conditions.join(" and ")}, 'job', to_jsonb(j)) as text) as job ` +
      "from jsonb_populate_record(cast(null as bugle.jobs), cast(cast($1 as text) as jsonb)) w, bugle.jobs j " +
      "where j.finished_at is null order by j.id",
    parameters,
  );
  return first(
    wanted,
    rows.map((row) => {
      const { job, fits } = JSON.parse(String(row));
      const set = OPTION_NAMES.filter((name) => (job[name] ?? null) !== null).map((name) => [name, job[name]]);
      return [{ command: job.command, payload: job.payload, ...Object.fromEntries(set) }, fits];
    }),
  );
}

function first(wanted: any, jobs: readonly [NewJob, boolean][]): NewJob {
  const found = jobs.find(([, fits]) => fits);
  if (found !== undefined) return found[0];
  // those that are meant most likely come first
  const isOther = ([job]: [NewJob, boolean]) => Number(job.command !== wanted.command);
  const likely = [...jobs].sort((a, b) => isOther(a) - isOther(b)).map(([job]) => `\n  ${toJson(job)}`);
  const more = likely.length > 10 ? `\n  and ${likely.length - 10} more` : "";
  const told = likely.slice(0, 10).join("") || " nothing";
  throw new Error(`${toJson(wanted)} is not enqueued; enqueued are:${told}${more}`);
}

/** A job in a sandbox. It has the columns of `bugle.jobs` that matter to a test. */
export interface SandboxJob {
  id: string;
  command: string;
  payload: any;
  options: Options;
  state: "ready" | "scheduled" | "retrying" | "waiting" | "running" | "completed" | "failed" | "cancelled";
  run_at: Date;
  attempt: number;
  result?: any;
  error?: string | undefined;
  code?: string | undefined;
  runs: Ran[];
  parent?: string | undefined;
  step: number;
  context: Record<string, any>;
  answer?: unknown;
  steps: Record<string, any>;
}

const DUE = new Set(["ready", "scheduled", "retrying"]);
const LIVE = new Set([...DUE, "waiting", "running"]);

/**
 * A queue in memory: what is enqueued while it is entered goes here, and `drain` runs it.
 *
 * Its clock stands still; `advance` moves it. It supports states, retries (5 seconds later, or as the job says),
 * snoozing, answers, chains, children, unique and idempotency keys, and what follows a job (`on_success`,
 * `on_failure`). It does not support limits, order, deadlines or policies: for those, test with a database and `bugle
 * worker --until-empty`. A job `after` others is an error.
 */
export class Sandbox {
  readonly jobs: SandboxJob[] = [];
  now: Date;
  readonly #host: Host<any>;
  readonly #maxAttempts: number;
  #before: ReturnType<typeof capture>;

  constructor(host: Host<any>, options: { maxAttempts?: number; now?: Date } = {}) {
    this.#host = host;
    this.#maxAttempts = options.maxAttempts ?? 16;
    this.now = options.now ?? new Date();
  }

  /** While this function runs, `enqueue` and `enqueueMany` enqueue here. */
  async within<T>(work: (sandbox: this) => T | PromiseLike<T>): Promise<T> {
    this.enter();
    try {
      return await work(this);
    } finally {
      this.leave();
    }
  }

  /** From now on, `enqueue` and `enqueueMany` enqueue here, until `leave` is called, as in a hook after each test. */
  enter(): this {
    this.#before = capture((job) => this.#add(job));
    return this;
  }

  /** From now on, `enqueue` and `enqueueMany` enqueue where they did before `enter`. */
  leave(): void {
    capture(this.#before);
  }

  /** Enqueue a job. */
  enqueue(command: string, payload?: unknown, options?: Options): SandboxJob {
    return this.job(this.#add(oneJob(command, payload, options)));
  }

  /** The job with this id. */
  job(id: string): SandboxJob {
    const job = this.jobs[Number(id) - 1];
    if (job === undefined) throw new Error(`there is no job ${id}`);
    return job;
  }

  /** Move the clock. */
  advance(seconds: number): void {
    this.now = new Date(this.now.getTime() + seconds * 1000);
  }

  /**
   * Run what is due, and what that enqueues, until nothing is due. Jobs of commands that the host does not have are
   * left, as a worker leaves them. With `untilEmpty` the clock is moved to the next job
   * that is due later, until none is left. Returns the jobs that ran. More than `most` runs (10,000) are an error:
   * something enqueues or snoozes without end.
   */
  async drain(options: { untilEmpty?: boolean; most?: number } = {}): Promise<SandboxJob[]> {
    const ran = new Set<SandboxJob>();
    let left = options.most ?? 10_000;
    for (;;) {
      const jobs = this.#next(options.untilEmpty ?? false);
      const first = jobs[0];
      if (first === undefined) return [...ran];
      left -= jobs.length;
      if (left < 0) {
        throw new Error(
          `drain does not end: job ${first.id} (${first.command}) has run ${first.runs.length} times and would be ` +
            "run again; allow more runs with { most: … }",
        );
      }
      await this.#run(jobs);
      for (const job of jobs) ran.add(job);
    }
  }

  /** Answer a job that waits, so that it runs again and finds the answer. */
  resolve(id: string, answer: unknown): void {
    const job = this.job(id);
    if (job.state !== "waiting") throw new Error(`job ${id} does not wait for an answer: it is ${job.state}`);
    Object.assign(job, { answer: copy(answer), state: "ready", run_at: this.now });
  }

  #add(job: NewJob, parent?: string): string {
    const { command, payload, ...options } = copy(spelled(job)) as NewJob;
    if (options.after) throw new RangeError('the sandbox does not support "after": test with a database');
    if (!["keep", "replace", "move"].includes(options.on_conflict ?? "keep")) {
      throw new RangeError(`on_conflict must be keep, replace or move, not ${options.on_conflict}`);
    }
    const repeated = options.idempotency_key;
    const known = this.jobs.find(
      (one) => repeated && one.command === command && one.options.idempotency_key === repeated,
    );
    if (known) return known.id;
    const key = options.unique_key;
    const same = this.jobs.find(
      (one) => key && one.command === command && one.options.unique_key === key && LIVE.has(one.state),
    );
    if (same) {
      this.#meet(same, payload, options);
      return same.id;
    }
    const runAt = this.#timeOf(options);
    const id = String(this.jobs.length + 1);
    const state = runAt > this.now ? "scheduled" : "ready";
    const rest = { attempt: 0, runs: [], step: 0, context: {}, steps: {} };
    this.jobs.push({ id, command, payload, options, state, run_at: runAt, parent, ...rest });
    return id;
  }

  #timeOf(options: Options): Date {
    if (options.run_at) return new Date(options.run_at);
    return this.#after(seconds(options.delay ?? 0));
  }

  /** Do what `on_conflict` says about the job that has the unique key. One that was started stays as it is. */
  #meet(job: SandboxJob, payload: unknown, options: Options): void {
    if (job.state === "running" || job.state === "waiting") return;
    if (options.on_conflict === "replace") {
      job.payload = payload;
    } else if (options.on_conflict === "move") {
      const { run_at: _, delay: __, ...kept } = job.options;
      const { run_at, delay } = options;
      job.options = { ...kept, ...(run_at ? { run_at } : {}), ...(delay ? { delay } : {}) };
      job.run_at = this.#timeOf(options);
      if (job.run_at <= this.now) job.state = "ready";
      else if (job.state === "ready") job.state = "scheduled";
    }
  }

  #after(delay: number): Date {
    return new Date(this.now.getTime() + delay * 1000);
  }

  /** The job that is to run; of a command that takes batches, all that are due. */
  #next(isUntilEmpty: boolean): SandboxJob[] {
    const rank = (job: SandboxJob) => [Math.max(+job.run_at, +this.now), job.options.priority ?? 0, Number(job.id)];
    const functions = this.#host.functions;
    const due = this.jobs.filter(
      (job) => DUE.has(job.state) && (isUntilEmpty || job.run_at <= this.now) && functions.has(nextCommand(job)),
    );
    due.sort((a, b) => rank(a).reduce((order, value, index) => order || value - (rank(b)[index] as number), 0));
    const first = due[0];
    if (first === undefined) return [];
    if (first.run_at > this.now) this.now = first.run_at;
    const most = functions.get(nextCommand(first))?.most;
    if (most === undefined || !sharesCalls(first)) return [first];
    const isSame = (one: SandboxJob) => one.command === first.command && sharesCalls(one) && one.run_at <= this.now;
    return due.filter(isSame).slice(0, most);
  }

  async #run(jobs: SandboxJob[]): Promise<void> {
    const prepared = jobs.map((job) => this.#prepare(job));
    const all = await runTasks(this.#host, prepared[0]?.command as string, prepared);
    jobs.forEach((job, index) => {
      const ran = all[index] as Ran;
      job.runs.push(ran);
      job.steps = ran.steps;
      this.#end(job, ran, job.options.steps);
    });
  }

  #prepare(job: SandboxJob): Task & { command: string } {
    const chain = job.options.steps;
    const given: Internal = { id: job.id, answer: job.answer, steps: job.steps, add: (one) => this.#add(one) };
    const command = nextCommand(job);
    let { payload } = job;
    if (chain) {
      payload = { ...payload, ...job.context };
      given.context = job.context;
      given.step = { chain: job.command, position: job.step + 1, steps: chain.length, attempt: 1 };
    }
    given.attempt = ++job.attempt;
    job.state = "running";
    given.max_attempts = job.options.max_attempts ?? this.#maxAttempts;
    if (job.options.headers) given.headers = job.options.headers;
    given.children = this.jobs
      .filter((one) => one.parent === job.id)
      .map(({ id, state, result, error }) => ({ id, state, result, error: error ?? null }));
    return { command, payload, given };
  }

  #end(job: SandboxJob, ran: Ran, chain: readonly string[] | null | undefined): void {
    job.answer = undefined;
    // completed in a transaction; with children, it waits for them
    const outcome = ran.outcome === "settled" && ran.spawned.length === 0 ? "done" : ran.outcome;
    switch (outcome) {
      case "done":
      case "skip": {
        if (chain) {
          const output = outcome === "done" ? (ran.result ?? {}) : {};
          const isObject = typeof output === "object" && !Array.isArray(output);
          Object.assign(job.context, isObject ? output : { [chain[job.step] as string]: output });
          job.step += 1;
          if (job.step < chain.length) {
            job.state = "ready";
            job.attempt -= 1;
            return;
          }
        }
        job.result = chain ? job.context : ran.result;
        return this.#ended(job, "completed");
      }
      case "fail": {
        job.error = ran.error;
        job.code = ran.code;
        if (!ran.retryable || job.attempt >= (job.options.max_attempts ?? this.#maxAttempts)) {
          return this.#ended(job, "failed");
        }
        job.state = "retrying";
        job.run_at = this.#after(ran.retry_after ?? seconds(job.options.retry_delay ?? 5));
        return;
      }
      case "snooze":
        job.attempt -= 1;
        job.state = "scheduled";
        job.run_at = this.#after(ran.delay ?? 0);
        return;
      case "cancelled":
        return this.#ended(job, "cancelled");
    }
    // for an answer, or for its children
    job.attempt -= 1;
    job.state = "waiting";
    for (const child of ran.spawned) this.#add(child, job.id);
  }

  #ended(job: SandboxJob, state: SandboxJob["state"]): void {
    job.state = state;
    const { on_success, on_failure, queue = "default" } = job.options;
    const follower = state === "completed" ? on_success : state === "failed" ? on_failure : undefined;
    if (follower) {
      const told = { job: Number(job.id), state, reason: null, command: job.command, queue };
      const payload = { ...told, result: job.result ?? null, error: job.error ?? null };
      this.#add({ command: follower, payload, queue });
    }
    if (job.parent === undefined) return;
    if (this.jobs.some((one) => one.parent === job.parent && LIVE.has(one.state))) return;
    Object.assign(this.job(job.parent), { state: "ready", run_at: this.now });
  }
}

/** The command that a job runs next: of a chain, that of its step. */
function nextCommand(job: SandboxJob): string {
  return job.options.steps?.[job.step] ?? job.command;
}

/** Whether a job may be in one call with others. */
function sharesCalls(job: SandboxJob): boolean {
  return !job.options.steps && !job.runs.at(-1)?.alone;
}

function seconds(interval: string | number): number {
  const [, amount, unit] = /^([\d.]+) (second|minute|hour|day)s?$/.exec(String(interval)) ?? [];
  if (typeof interval === "number") return interval;
  if (amount === undefined) throw new RangeError(`the sandbox supports seconds, not "${interval}"`);
  return Number(amount) * { second: 1, minute: 60, hour: 3600, day: 86_400 }[unit as "second"];
}
