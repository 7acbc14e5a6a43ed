/**
 * Tests of functions without a worker and without a database.
 *
 * ```ts
 * const ran = await run(host, "send_mail", { to: "ada@example.org" });
 * assert.deepEqual(ran.result, { sent_to: "ada@example.org" });
 *
 * const sandbox = new Sandbox(host).enter();
 * await placeOrder(client);                      // calls enqueue(client, …): the job goes to the sandbox
 * await sandbox.drain();
 * assert.equal(sandbox.jobs[0].state, "completed");
 * sandbox.leave();
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
import { type NewJob, type Options, spelled } from "./newJob.js";
import { answer, type Registered, runBatch, runOne } from "./run.js";

/** What one run of a function did. */
export interface Ran {
  outcome: "done" | "fail" | "snooze" | "wait" | "skip" | "cancelled" | "settled";
  /** As JSON that was stored and read again. */
  result?: any;
  error?: string;
  code?: string;
  retryable?: boolean;
  retry_after?: number;
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

/** What a run finds: fields of the job, and what the worker would answer. */
export interface Given {
  attempt?: number;
  headers?: Record<string, unknown>;
  answer?: unknown;
  context?: Record<string, unknown>;
  /** Steps that are done already, with their outputs. */
  steps?: Record<string, unknown>;
  children?: Ended[];
  dependencies?: Ended[];
}

interface Internal extends Given {
  id?: string;
  step?: JobMessage["step"];
  add?: (job: NewJob) => string;
}

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

  settle(job: Job, result: unknown, error: unknown, isError: boolean): void {
    if (job.isAnswered) return;
    job.isAnswered = true;
    const { type, id: _, claim: __, ...fields } = JSON.parse(answer(job, result, error, isError));
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

async function runAll(host: Host<any>, command: string, payloads: readonly unknown[], given: Internal): Promise<Ran[]> {
  const registered = registeredIn(host, command);
  const folder = await mkdtemp(join(tmpdir(), "bugle-"));
  try {
    const recorders = payloads.map(() => new Recorder(given));
    const jobs = payloads.map((payload, index) => {
      const { steps: _, children: __, dependencies: ___, add: ____, ...fields } = given;
      const id = String(index + 1);
      const message = { id, claim: "1", command, attempt: 1, ...fields, payload: copy(payload ?? null) };
      return new Job({ ...message, workdir: join(folder, id) }, recorders[index] as Recorder);
    });
    if (registered.most !== undefined) {
      await runBatch(registered, jobs);
    } else {
      runOne(registered, jobs[0] as Job);
    }
    await Promise.all(recorders.map((recorder) => recorder.ended));
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

/** A job in a sandbox. It has the columns of `bugle.jobs` that matter to a test. */
export interface SandboxJob {
  id: string;
  command: string;
  payload: any;
  options: Options;
  state: "ready" | "scheduled" | "retrying" | "waiting" | "completed" | "failed" | "cancelled";
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
const LIVE = new Set([...DUE, "waiting"]);

/**
 * A queue in memory: what is enqueued while it is entered goes here, and `drain` runs it.
 *
 * Its clock stands still; `advance` moves it. It knows states, retries (5 seconds later, or as the job says), snoozing,
 * answers, chains, children and unique keys. It does not know limits, order, deadlines or policies: for those, test
 * with a database and `bugle worker --until-empty`.
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

  /** From now on, `enqueue` and `enqueueMany` enqueue here. */
  enter(): this {
    this.#before = capture((job) => this.#add(job));
    return this;
  }

  /** The opposite. */
  leave(): void {
    capture(this.#before);
  }

  /** Enqueue a job. */
  enqueue(command: string, payload?: unknown, options?: Options): SandboxJob {
    return this.job(this.#add({ ...options, command, payload }));
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
   * Run what is due, and what that enqueues, until nothing is due. With `untilEmpty` the clock is moved to the next job
   * that is due later, until none is left. Returns the jobs that ran.
   */
  async drain(options: { untilEmpty?: boolean } = {}): Promise<SandboxJob[]> {
    const ran = new Set<SandboxJob>();
    for (;;) {
      const job = this.#next(options.untilEmpty ?? false);
      if (job === undefined) return [...ran];
      ran.add(job);
      await this.#run(job);
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
    const key = options.unique_key;
    const same = this.jobs.find(
      (one) => key && one.command === command && one.options.unique_key === key && LIVE.has(one.state),
    );
    if (same) return same.id;
    let runAt = this.now;
    if (options.run_at) runAt = new Date(options.run_at);
    else if (options.delay) runAt = this.#after(seconds(options.delay));
    const id = String(this.jobs.length + 1);
    const state = runAt > this.now ? "scheduled" : "ready";
    const rest = { attempt: 0, runs: [], step: 0, context: {}, steps: {} };
    this.jobs.push({ id, command, payload, options, state, run_at: runAt, parent, ...rest });
    return id;
  }

  #after(delay: number): Date {
    return new Date(this.now.getTime() + delay * 1000);
  }

  #next(isUntilEmpty: boolean): SandboxJob | undefined {
    const rank = (job: SandboxJob) => [Math.max(+job.run_at, +this.now), job.options.priority ?? 0, Number(job.id)];
    const due = this.jobs.filter((job) => DUE.has(job.state) && (isUntilEmpty || job.run_at <= this.now));
    due.sort((a, b) => rank(a).reduce((order, value, index) => order || value - (rank(b)[index] as number), 0));
    const job = due[0];
    if (job && job.run_at > this.now) this.now = job.run_at;
    return job;
  }

  async #run(job: SandboxJob): Promise<void> {
    const chain = job.options.steps;
    const given: Internal = { id: job.id, answer: job.answer, steps: job.steps, add: (one) => this.#add(one) };
    let { command, payload } = job;
    if (chain) {
      command = chain[job.step] as string;
      payload = { ...payload, ...job.context };
      given.context = job.context;
      given.step = { chain: job.command, position: job.step + 1, steps: chain.length, attempt: 1 };
    }
    given.attempt = ++job.attempt;
    if (job.options.headers) given.headers = job.options.headers;
    given.children = this.jobs
      .filter((one) => one.parent === job.id)
      .map(({ id, state, result, error }) => ({ id, state, result, error: error ?? null }));
    const ran = (await runAll(this.#host, command, [payload], given))[0] as Ran;
    job.runs.push(ran);
    job.steps = ran.steps;
    this.#end(job, ran, chain);
  }

  #end(job: SandboxJob, ran: Ran, chain: readonly string[] | null | undefined): void {
    job.answer = undefined;
    switch (ran.outcome) {
      case "done":
      case "skip": {
        if (chain) {
          const output = ran.outcome === "done" ? (ran.result ?? {}) : {};
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
      case "settled":
        if (ran.spawned.length === 0) return this.#ended(job, "completed");
    }
    // for an answer, or for its children
    job.attempt -= 1;
    job.state = "waiting";
    for (const child of ran.spawned) this.#add(child, job.id);
  }

  #ended(job: SandboxJob, state: SandboxJob["state"]): void {
    job.state = state;
    if (job.parent === undefined) return;
    if (this.jobs.some((one) => one.parent === job.parent && LIVE.has(one.state))) return;
    Object.assign(this.job(job.parent), { state: "ready", run_at: this.now });
  }
}

function seconds(interval: string | number): number {
  const [, amount, unit] = /^([\d.]+) (second|minute|hour|day)s?$/.exec(String(interval)) ?? [];
  if (typeof interval === "number") return interval;
  if (amount === undefined) throw new RangeError(`a sandbox understands seconds, not "${interval}"`);
  return Number(amount) * { second: 1, minute: 60, hour: 3600, day: 86_400 }[unit as "second"];
}
