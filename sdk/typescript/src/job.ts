import { mkdir } from "node:fs/promises";

import { show, toJson } from "./json.js";
import { type ArgumentsOf, type NewJob, type NewJobOf, type Options, oneJob, spelled } from "./newJob.js";
import { CallFailed, Cancelled, ClaimLost, Fail, Outcome, text } from "./outcomes.js";
import { type Client, query } from "./sql.js";

export type LogLevel = "debug" | "info" | "warn" | "error";

/** The place of a job in its chain. */
export interface Chain {
  chain: string;
  position: number;
  steps: number;
  attempt: number;
}

/** A job that another one waited for, and how it ended. */
export interface Ended<R = any> {
  id: string;
  name?: string | null;
  state: "completed" | "failed" | "cancelled" | string;
  reason?: string | null;
  result?: R;
  error?: string | null;
}

/** A `job` message. @internal */
export interface JobMessage {
  id: string;
  claim: string;
  command: string;
  queue?: string;
  attempt?: number;
  max_attempts?: number | null;
  payload?: unknown;
  headers?: Record<string, unknown> | null;
  traceparent?: string | null;
  timeout?: number | null;
  deadline?: string | null;
  workdir?: string;
  step?: Chain | null;
  context?: Record<string, unknown> | null;
  answer?: unknown;
  worker_id?: string;
  nonce?: string;
}

/** The answer to a call. @internal */
export interface Reply {
  value?: any;
  error?: string | null;
  code?: string | null;
}

/** The receiver of the messages of a job: the worker, or a test. @internal */
export interface Channel {
  send(message: Record<string, unknown>): void;
  progress(id: string, message: Record<string, unknown>): void;
  call(message: Record<string, unknown>): Promise<Reply>;
  settle(job: Job<any>, result: unknown, error: unknown, isError: boolean): void;
  /** Note that a job is completed in a transaction. True in a test: then no SQL is run. */
  takesCompletion(result: unknown): boolean;
}

const COMPLETE =
  "select verdict from bugle.complete(cast(cast($1 as text) as bigint), cast(cast($2 as text) as uuid), " +
  "array[row(cast(cast($3 as text) as bigint), cast(cast($4 as text) as bigint), cast(cast($5 as text) as jsonb))" +
  "::bugle.finished_job])";
const FINISH_STEP =
  "select verdict from bugle.finish_step(cast(cast($1 as text) as bigint), cast(cast($2 as text) as uuid), " +
  "row(cast(cast($3 as text) as bigint), cast(cast($4 as text) as bigint))::bugle.held_job, " +
  "cast(cast($6 as text) as integer), cast(cast($7 as text) as integer), cast(cast($5 as text) as jsonb), false)";

/** A job while it runs: what it is, and what its function can tell the worker and ask it. */
export class Job<P = any> {
  /** @internal */ readonly message: JobMessage;
  /** @internal */ isAnswered = false;
  /** @internal */ isSettled = false;
  /** @internal */ isToBeAlone = false;
  #channel: Channel;
  #cancelled: string | undefined;
  #controller: AbortController | undefined;
  #payload: P;

  /** @internal */
  constructor(message: JobMessage, channel: Channel) {
    this.message = message;
    this.#channel = channel;
    this.#payload = message.payload as P;
  }

  /** The job's id in `bugle.jobs`, a 64-bit integer: a good key to make work safe to repeat. */
  get id(): string {
    return this.message.id;
  }

  /** The command. */
  get command(): string {
    return this.message.command;
  }

  /** The queue it was claimed from. */
  get queue(): string {
    return this.message.queue ?? "default";
  }

  /** The number of this attempt, from 1. */
  get attempt(): number {
    return this.message.attempt ?? 1;
  }

  /** The number of attempts before the job fails for good, if that is limited. */
  get maxAttempts(): number | undefined {
    return this.message.max_attempts ?? undefined;
  }

  /** The payload; what the schema made of it, if the function was registered with one. */
  get payload(): P {
    return this.#payload;
  }

  /** @internal */
  set payload(payload: P) {
    this.#payload = payload;
  }

  /** The headers it was enqueued with. */
  get headers(): Record<string, unknown> {
    return this.message.headers ?? {};
  }

  /** The trace it belongs to. */
  get traceparent(): string | undefined {
    return this.message.traceparent ?? undefined;
  }

  /** The time limit of this attempt, in seconds. */
  get timeout(): number | undefined {
    return this.message.timeout ?? undefined;
  }

  /** The time at which the limit of this attempt ends. */
  get deadline(): Date | undefined {
    return this.message.deadline ? new Date(this.message.deadline) : undefined;
  }

  /** The place of the job in its chain, if it has one. */
  get chain(): Chain | undefined {
    return this.message.step ?? undefined;
  }

  /** In a chain, the outputs of the steps before this one. */
  get context(): Record<string, any> {
    return this.message.context ?? {};
  }

  /** The answer with which the job was resumed, if it had waited for one. */
  get answer(): any {
    return this.message.answer ?? undefined;
  }

  /** Aborted when the job should stop: hand it to `fetch` and others. Its reason is a `Cancelled`. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#cancelled !== undefined) this.#controller.abort(new Cancelled(this.#cancelled));
    }
    return this.#controller.signal;
  }

  /** The reason why the job should stop (`timeout`, `cancelled`, `lost`, `shutdown`), if it should. */
  get cancelled(): string | undefined {
    return this.#cancelled;
  }

  /** Throw `Cancelled` if the job should stop. */
  check(): void {
    if (this.#cancelled !== undefined) throw new Cancelled(this.#cancelled);
  }

  /** Report progress, shown in `bugle.running_jobs`. Throws `Cancelled` if the job should stop. */
  progress(percent: number, note?: string): void {
    this.check();
    if (typeof percent !== "number" || !(percent >= 0 && percent <= 100)) {
      throw new RangeError(`progress takes a number from 0 to 100, and then a note, not ${show(percent)}`);
    }
    text(note, "the note");
    this.#channel.progress(this.id, { type: "progress", id: this.id, percent, note });
  }

  /** Write a line to the worker's log, with the host's name and the job. */
  log(message: string, level: LogLevel = "info"): void {
    this.#channel.send({ type: "log", id: this.id, level, message });
  }

  /** A folder for this attempt, which is created by this call and removed by the worker. */
  async workspace(): Promise<string> {
    const path = this.message.workdir;
    if (path === undefined) throw new Error("this job has no workspace");
    await mkdir(path, { recursive: true, mode: 0o700 });
    return path;
  }

  /** Do something once per job, even if the job is retried: the output is stored, and returned the next time. */
  async step<T>(name: string, work: () => T | PromiseLike<T>): Promise<T> {
    this.check();
    const stored = await this.#call({ type: "step.get", id: this.id, name });
    if (stored.done) return stored.output as T;
    let output: T;
    try {
      output = await work();
    } catch (error) {
      // a step that snoozes, for example, has not failed
      if (error instanceof Fail || !(error instanceof Outcome)) {
        const code = error instanceof Fail ? error.code : (error as Error)?.name;
        const told = String((error as Error)?.message ?? error);
        await this.#call({ type: "step.put", id: this.id, name, error: told, code });
      }
      throw error;
    }
    await this.#call({ type: "step.put", id: this.id, name, output });
    return output;
  }

  /** Enqueue children, and return from the function: the job runs again when they have ended. */
  async spawn(jobs: readonly NewJob[]): Promise<void>;
  async spawn<Commands>(jobs: readonly NewJobOf<Commands>[]): Promise<void>;
  async spawn(jobs: readonly NewJob[]): Promise<void> {
    await this.#call({ type: "spawn", id: this.id, jobs: jobs.map(spelled) });
    this.isSettled = true;
  }

  /** The children that this job has spawned, and how they ended. Empty in the first run. */
  async children<R = any>(): Promise<Ended<R>[]> {
    return (await this.#call({ type: "children", id: this.id })) ?? [];
  }

  /** The jobs that this one waited for. */
  async dependencies<R = any>(): Promise<Ended<R>[]> {
    return (await this.#call({ type: "dependencies", id: this.id })) ?? [];
  }

  /** Enqueue a job through the worker, in a transaction of its own. Returns its id. */
  async enqueue(job: NewJob): Promise<string>;
  async enqueue(command: string, payload?: unknown, options?: Options): Promise<string>;
  async enqueue<Commands>(job: NewJobOf<Commands>): Promise<string>;
  async enqueue<Commands>(...job: ArgumentsOf<Commands>): Promise<string>;
  async enqueue(job: NewJob | string, payload?: unknown, options?: Options): Promise<string> {
    return (await this.enqueueMany([oneJob(job, payload, options)]))[0] as string;
  }

  /** Enqueue jobs through the worker: all of them, or none. Returns their ids. */
  async enqueueMany(jobs: readonly NewJob[]): Promise<string[]>;
  async enqueueMany<Commands>(jobs: readonly NewJobOf<Commands>[]): Promise<string[]>;
  async enqueueMany(jobs: readonly NewJob[]): Promise<string[]> {
    return this.#call({ type: "enqueue", jobs: jobs.map(spelled) });
  }

  /**
   * Complete the job in the transaction of this client: with its other writes, or not at all.
   *
   * Commit afterwards; the value that the function returns is then ignored. Throws `ClaimLost` if another worker has
   * the job now: roll back. The login must be a member of `bugle_worker`. In `bugle-jobs/testing` the completion is
   * noted, and the client is not used for it.
   */
  async completeIn(client: Client, result?: unknown): Promise<void> {
    if (this.#channel.takesCompletion(result)) {
      this.isSettled = true;
      return;
    }
    const { worker_id = null, nonce = null, id, claim, step } = this.message;
    const parameters = [worker_id, nonce, id, claim, result === undefined || result === null ? null : toJson(result)];
    if (step) parameters.push(String(step.position), String(step.attempt));
    for (const verdict of await query(client, step ? FINISH_STEP : COMPLETE, parameters)) {
      if (verdict !== null) throw new ClaimLost(String(verdict));
    }
    this.isSettled = true;
  }

  /** In a batch: complete this job, while others still run. */
  done(result?: unknown): void {
    this.settle(result, undefined, false);
  }

  /** In a batch: give this job another outcome, such as `new Fail(…)` or any error. */
  fail(error: unknown): void {
    this.settle(undefined, error, true);
  }

  /** @internal */
  settle(result: unknown, error: unknown, isError: boolean): void {
    this.#channel.settle(this, result, error, isError);
  }

  /** @internal */
  stop(reason: string): void {
    this.#cancelled = reason;
    this.#controller?.abort(new Cancelled(reason));
  }

  async #call(message: Record<string, unknown>): Promise<any> {
    const reply = await this.#channel.call(message);
    if (reply.error === undefined || reply.error === null) return reply.value;
    throw new CallFailed(reply.error, reply.code ?? "call_failed");
  }
}
