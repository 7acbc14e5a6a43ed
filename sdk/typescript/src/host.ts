import { connect, type Socket } from "node:net";

import { type Channel, Job, type JobMessage, type Reply } from "./job.js";
import { show, toJson } from "./json.js";
import { BadPayload } from "./outcomes.js";
import { answer, type Registered, runBatch, runOne } from "./run.js";
import { VERSION } from "./version.js";

/** Checks a payload: a schema of zod, valibot, arktype or others (Standard Schema), or a function. */
export type Schema<P> =
  | ((payload: unknown) => P)
  | { parse(payload: unknown): P }
  | { "~standard": { validate(payload: unknown): any; types?: { output: P } | undefined } };

export type JobFunction<P> = (job: Job<P>) => unknown;
export type BatchFunction<P> = (jobs: Job<P>[]) => unknown;

/** Called around each call of a function, with its jobs: one, or those of a batch. Returns what `run` returns. */
export type Around = (jobs: readonly Job[], run: () => Promise<unknown>) => unknown;

export interface HostOptions {
  /** The number of jobs that a process runs at once, unless the worker's file sets it. Default: 64 */
  concurrency?: number;
  /** Called around each call of a function, for example to run it within an AsyncLocalStorage. */
  around?: Around;
}

/** The size of batches, and a schema for the payloads of their jobs. */
export interface BatchOptions<P> {
  /** At most this many jobs are in one call. */
  most: number;
  /** A job whose payload is rejected fails by itself, and is not in the batch. */
  schema?: Schema<P>;
}

/** The functions that run jobs. `Commands` are the payloads by the names of their commands, for the type checker. */
export class Host<Commands extends Record<keyof Commands, unknown> = Record<string, any>> {
  readonly concurrency: number;
  /** @internal */ readonly functions = new Map<string, Registered>();
  readonly #around: Around | undefined;

  constructor(options: HostOptions = {}) {
    this.concurrency = options.concurrency ?? 64;
    this.#around = options.around;
    if (!Number.isInteger(this.concurrency) || this.concurrency < 1 || this.concurrency > 10_000) {
      throw new RangeError(`concurrency must be between 1 and 10000, not ${options.concurrency}`);
    }
  }

  /**
   * Run the jobs of a command with this function. What it returns is the result; an error is a failure, and the job is
   * retried. A schema checks the payload first; what it returns must fit the payload of the command in `Commands`.
   */
  on<C extends keyof Commands & string>(command: C, run: JobFunction<Commands[C]>): this;
  on<C extends keyof Commands & string, P extends Commands[C]>(
    command: C,
    schema: Schema<P>,
    run: JobFunction<P>,
  ): this;
  on(command: string, ...rest: [JobFunction<any>] | [Schema<any>, JobFunction<any>]): this {
    const run = rest.at(-1) as JobFunction<any>;
    return this.#add(command, run, rest.length > 1 ? checker(command, rest[0]) : undefined, undefined);
  }

  /**
   * Run up to `most` jobs of a command in one call of this function.
   *
   * The function returns an array with a result or an outcome for each job, in their order; or it calls `job.done` and
   * `job.fail` and returns nothing, and jobs without an outcome are completed. An error fails all jobs that have no
   * outcome yet, and they are retried each in a call of its own. To fail all of them and have them retried together,
   * throw a `Fail`.
   */
  onMany<C extends keyof Commands & string, P extends Commands[C] = Commands[C]>(
    command: C,
    options: BatchOptions<P>,
    run: BatchFunction<P>,
  ): this {
    if (typeof options !== "object" || options === null) {
      throw new TypeError(`write onMany(${show(command)}, { most: 100 }, (jobs) => …)`);
    }
    const { most, schema } = options;
    if (!Number.isInteger(most) || most < 1 || most > 10_000) {
      throw new RangeError(`most must be between 1 and 10000, not ${most}`);
    }
    return this.#add(command, run, schema === undefined ? undefined : checker(command, schema), most);
  }

  #add(command: string, run: (given: any) => unknown, schema: Registered["schema"], most: number | undefined): this {
    if (typeof command !== "string" || !command.trim() || Buffer.byteLength(command) > 200) {
      throw new TypeError(`a command is a name of 1 to 200 bytes, not ${show(command)}`);
    }
    if (typeof run !== "function") throw new TypeError(`${command}: this is not a function: ${show(run)}`);
    if (this.functions.has(command)) throw new Error(`command "${command}" is already registered`);
    const around = this.#around;
    const within = (given: any) => around?.(most === undefined ? [given] : given, async () => run(given));
    this.functions.set(command, { command, run: around === undefined ? run : within, schema, most });
    return this;
  }

  /**
   * Connect to the worker that has started this process, and run jobs until it closes the connection. The process ends
   * soon afterwards, even if something is still open. If there is no worker, or it rejects the host, stderr says why,
   * and the process exits with 1.
   */
  async run(): Promise<void> {
    const refused = await this.#serve();
    setTimeout(() => process.exit(), 2000).unref();
    if (refused === undefined) return;
    console.error(refused);
    process.exitCode = 1;
  }

  /** Returns why it could not, if so. */
  async #serve(): Promise<string | undefined> {
    const path = process.env["BUGLE_HOST"];
    if (!path) {
      const program = ["node", ...process.argv.slice(1)].map((argument) => JSON.stringify(argument)).join(", ");
      return (
        "BUGLE_HOST is not set: a worker starts this program. Put this into its file, and run `bugle dev`:\n\n" +
        `[hosts.app]\nprogram = [${program}]`
      );
    }
    if (this.functions.size === 0) return 'this host has no functions: register one with host.on("command", …)';
    const connection = new Connection(this);
    await connection.serve(path);
    return connection.refused;
  }
}

function checker(command: string, schema: any): (payload: unknown) => unknown {
  const isObject = (typeof schema === "object" && schema !== null) || typeof schema === "function";
  if (isObject && typeof schema["~standard"]?.validate === "function") {
    const standard = (schema as { "~standard": { validate(payload: unknown): any } })["~standard"];
    return async (payload) => {
      const checked = await standard.validate(payload);
      if (!checked.issues) return checked.value;
      const issues = checked.issues.map((issue: { message: string; path?: unknown[] }) => {
        const path = (issue.path ?? []).map((part: any) => `.${String(part?.key ?? part)}`).join("");
        return `payload${path}: ${issue.message}`;
      });
      throw new BadPayload(issues.join("; "));
    };
  }
  if (isObject && typeof schema.parse === "function") return (payload) => schema.parse(payload);
  if (typeof schema === "function") return schema;
  throw new TypeError(
    `${command}: a schema implements Standard Schema, has a method "parse", or is a function, unlike ${show(schema)}`,
  );
}


class Connection implements Channel {
  refused: string | undefined;
  readonly #host: Host<any>;
  readonly #jobs = new Map<string, Job>();
  readonly #calls = new Map<string, (reply: Reply) => void>();
  #lastCall = 0;
  #socket: Socket | undefined;
  #isWelcome = false;
  #isClosed = false;
  #partial: string[] = [];
  #out: string[] = [];
  #progress = new Map<string, string>();
  #isFlushing = false;
  #whenIdle: (() => void) | undefined;

  constructor(host: Host<any>) {
    this.#host = host;
  }

  async serve(path: string): Promise<void> {
    const socket = connect(path);
    this.#socket = socket;
    socket.setEncoding("utf8");
    socket.on("data", (data: string) => this.#receive(data));
    socket.on("connect", () => this.#hello());
    await new Promise<void>((resolve) => {
      socket.on("error", (error) => {
        if (!this.#isWelcome) this.refused = `cannot connect to the worker at ${path}: ${error.message}`;
      });
      socket.on("end", () => socket.destroy());
      socket.on("close", () => resolve());
    });
    this.#isClosed = true;
    for (const answered of this.#calls.values()) answered(CLOSED);
    this.#calls.clear();
    // functions may clean up; the worker has given up their jobs
    for (const job of [...this.#jobs.values()]) job.stop("lost");
    if (this.#jobs.size === 0) return;
    await new Promise<void>((resolve) => {
      this.#whenIdle = resolve;
      setTimeout(resolve, 3000).unref();
    });
  }

  send(message: Record<string, unknown>): void {
    this.#write(`${toJson(message)}\n`);
  }

  progress(id: string, message: Record<string, unknown>): void {
    // only the newest of a job is sent
    this.#progress.set(id, `${toJson(message)}\n`);
    this.#schedule();
  }

  call(message: Record<string, unknown>): Promise<Reply> {
    const call = String(++this.#lastCall);
    const line = `${toJson({ ...message, call })}\n`;
    if (this.#isClosed) return Promise.resolve(CLOSED);
    return new Promise((resolve) => {
      this.#calls.set(call, resolve);
      this.#write(line);
    });
  }

  takesCompletion(): boolean {
    return false;
  }

  settle(job: Job, result: unknown, error: unknown, isError: boolean): void {
    if (job.isAnswered) return;
    job.isAnswered = true;
    this.#jobs.delete(key(job.message));
    this.#write(answer(job, result, error, isError));
    if (this.#whenIdle && this.#jobs.size === 0) this.#whenIdle();
  }

  #write(line: string): void {
    this.#out.push(line);
    this.#schedule();
  }

  // after everything that the lines received at once have started and that did not wait: one write for all of it
  #schedule(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    setImmediate(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushing = false;
    let text = this.#out.join("");
    this.#out = [];
    if (this.#progress.size > 0) {
      text = [...this.#progress.values()].join("") + text;
      this.#progress.clear();
    }
    if (!this.#isClosed && !this.#socket?.destroyed) this.#socket?.write(text);
  }

  #hello(): void {
    const commands = [...this.#host.functions.values()].map((one) =>
      one.most === undefined ? one.command : { name: one.command, most: one.most },
    );
    this.send({
      type: "hello",
      protocol: 1,
      commands,
      concurrency: this.#host.concurrency,
      language: `node ${process.versions.node}`,
      sdk: `bugle-jobs ${VERSION}`,
    });
  }

  #receive(data: string): void {
    // a large line comes in many pieces: they are joined once
    if (!data.includes("\n")) {
      this.#partial.push(data);
      return;
    }
    if (this.#partial.length > 0) {
      this.#partial.push(data);
      data = this.#partial.join("");
      this.#partial = [];
    }
    const lines = data.split("\n");
    const rest = lines.pop();
    if (rest) this.#partial.push(rest);
    for (const line of lines) if (line.length > 1) this.#receiveLine(line);
  }

  #receiveLine(line: string): void {
    let message: any;
    try {
      message = JSON.parse(line);
    } catch {
      this.#sayError("bad_line", "this is not a line of JSON");
      return;
    }
    switch (message?.type) {
      case "job":
        return this.#onJob(message);
      case "jobs":
        return this.#onJobs(message);
      case "reply": {
        const answered = this.#calls.get(message.call);
        this.#calls.delete(message.call);
        return answered?.(message);
      }
      case "cancel": {
        return this.#jobs.get(key(message))?.stop(message.reason ?? "cancelled");
      }
      case "ping":
        return this.#write('{"type":"pong"}\n');
      case "welcome":
        this.#isWelcome = true;
        return;
      case "drain": // the worker closes the connection after the last job
        return;
      case "error": {
        const text = `the worker says: ${message.error} (${message.code})`;
        if (!this.#isWelcome) this.refused = text;
        console.error(text);
        return;
      }
      default:
        this.#sayError("unknown_type", `this host does not know messages of the type '${String(message?.type)}'`);
    }
  }

  #sayError(code: string, error: string): void {
    this.send({ type: "error", code, error });
  }

  #onJob(message: JobMessage): void {
    const registered = this.#host.functions.get(message.command);
    if (registered === undefined) return this.#unknown(message);
    if (registered.most !== undefined) return this.#onJobs({ command: message.command, jobs: [message] });
    const job = new Job(message, this);
    this.#jobs.set(key(message), job);
    runOne(registered, job);
  }

  #onJobs(message: { command: string; jobs: JobMessage[] }): void {
    const registered = this.#host.functions.get(message.command);
    const jobs = message.jobs.map((one) => new Job({ ...one, command: message.command }, this));
    if (registered?.most === undefined) {
      for (const job of jobs) this.#unknown(job.message);
      return;
    }
    for (const job of jobs) this.#jobs.set(key(job.message), job);
    void runBatch(registered, jobs);
  }

  #unknown(message: JobMessage): void {
    const error = `this host has no function for the command '${message.command}'`;
    this.send({ type: "fail", id: message.id, claim: message.claim, error, code: "unknown_command" });
  }
}

/** With the claim: a job that was given up may come again while its function still runs. */
function key(message: { id: string; claim: string }): string {
  return `${message.id} ${message.claim}`;
}

const CLOSED: Reply = { error: "the connection to the worker is closed", code: "unavailable" };
