// Runs a function on a job, or on a batch, and turns what it returns or throws into an outcome.

import type { Job } from "./job.js";
import { show, toJson } from "./json.js";
import { BadPayload, Cancelled, Fail, Outcome } from "./outcomes.js";

/** A function that runs the jobs of a command. */
export interface Registered {
  command: string;
  run: (job: any) => unknown;
  schema: ((payload: unknown) => unknown) | undefined;
  /** At most this many jobs at once, if it takes batches. */
  most: number | undefined;
}

const MOST_CHARACTERS_OF_AN_ERROR = 4000;

/** Run a function on a job. One that does not wait is answered at once, without a promise. */
export function runOne(registered: Registered, job: Job): void {
  if (registered.schema !== undefined) {
    void checkAndRun(registered, job);
    return;
  }
  try {
    const result = registered.run(job);
    if (isPromise(result)) {
      result.then(
        (value) => job.settle(value, undefined, false),
        (error: unknown) => job.settle(undefined, error, true),
      );
    } else {
      job.settle(result, undefined, false);
    }
  } catch (error) {
    job.settle(undefined, error, true);
  }
}

async function checkAndRun(registered: Registered, job: Job): Promise<void> {
  try {
    job.payload = await registered.schema?.(job.payload);
  } catch (error) {
    job.settle(undefined, misfit(error), true);
    return;
  }
  try {
    job.settle(await registered.run(job), undefined, false);
  } catch (error) {
    job.settle(undefined, error, true);
  }
}

/** The outcome for an error of a schema: the payload does not fit, unless the system was the cause. */
function misfit(error: unknown): unknown {
  const isOfSystem = (one: unknown) =>
    one instanceof Error && /^(E(?!RR_)[A-Z0-9_]+|UND_ERR_\w+)$/.test(String((one as { code?: unknown }).code));
  if (error instanceof Outcome || isOfSystem(error)) return error;
  if (error instanceof Error && isOfSystem(error.cause)) return error; // as fetch throws it
  return new BadPayload(error instanceof Error ? error.message : show(error));
}

/** Run a function on a batch. */
export async function runBatch(registered: Registered, all: Job[]): Promise<void> {
  const jobs = await fitting(registered, all);
  if (jobs.length === 0) return;
  try {
    const results = await registered.run(jobs);
    if (results !== undefined && results !== null && !(Array.isArray(results) && results.length === jobs.length)) {
      throw new Fail(
        `${registered.command} must return an array with an outcome for each of its ${jobs.length} jobs, or nothing`,
        { code: "bad_result", retryable: false },
      );
    }
    jobs.forEach((job, index) => job.settle((results as unknown[] | undefined)?.[index], undefined, false));
  } catch (error) {
    for (const job of jobs) {
      // one job may have caused it: each is retried in a call of its own. An outcome was chosen for all of them
      job.isToBeAlone = !(error instanceof Outcome) && job.cancelled === undefined;
      job.settle(undefined, error, true);
    }
  }
}

/** The jobs whose payloads fit, with what the schema made of them. Each of the others fails by itself. */
async function fitting({ schema }: Registered, jobs: Job[]): Promise<Job[]> {
  if (schema === undefined) return jobs;
  const fits = await Promise.all(
    jobs.map(async (job) => {
      try {
        job.payload = await schema(job.payload);
        return true;
      } catch (error) {
        job.settle(undefined, misfit(error), true);
        return false;
      }
    }),
  );
  return jobs.filter((_, index) => fits[index]);
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | undefined | null)?.then === "function";
}

/** The outcome of a job, as a line. There always is one, because a job without an answer would hang. */
export function answer(job: Job, result: unknown, error: unknown, isError: boolean): string {
  try {
    return answerOf(job, result, error, isError);
  } catch {
    // such as an error whose text cannot be made
    const { id, claim } = job.message;
    const outcome = new Fail("the outcome cannot be sent to the worker", { code: "bad_result", retryable: false });
    return `${toJson({ type: outcome.type, id, claim, ...outcome.fields() })}\n`;
  }
}

function answerOf(job: Job, result: unknown, error: unknown, isError: boolean): string {
  // without the claim, a late outcome could be taken for that of the job's next attempt
  const { id, claim } = job.message;
  const start = `"id":${JSON.stringify(id)},"claim":${JSON.stringify(claim)}`;
  if (!isError) {
    if (job.isSettled) return `{"type":"settled",${start}}\n`;
    if (result === undefined || result === null) return `{"type":"done",${start}}\n`;
    if (result instanceof Error) {
      error = result;
    } else {
      try {
        return `{"type":"done",${start},"result":${toJson(result)}}\n`;
      } catch (cause) {
        const told = cause instanceof Error ? cause.message : String(cause);
        error = new Fail(`the result cannot be stored: ${told}`, { code: "bad_result", retryable: false });
      }
    }
  }
  const outcome = outcomeOf(job, error);
  const alone = job.isToBeAlone ? true : undefined;
  return `${toJson({ type: outcome.type, id, claim, ...outcome.fields(), alone })}\n`;
}

function outcomeOf(job: Job, error: unknown): Outcome {
  if (error instanceof Outcome) return error;
  // such as an AbortError of what was given the signal
  if (job.cancelled !== undefined) return new Cancelled(job.cancelled);
  if (!(error instanceof Error)) return new Fail(`this was thrown: ${show(error)}`, { code: "thrown" });
  const code = (error as { code?: unknown }).code;
  return new Fail(told(error), { code: typeof code === "string" && code !== "" ? code : error.name });
}

/** An error as people read it: its message, and where it was thrown. */
function told(error: Error): string {
  let text = error.stack ?? `${error.name}: ${error.message}`;
  if (error.cause instanceof Error) text += `\ncaused by ${error.cause.name}: ${error.cause.message}`;
  text = text.replaceAll("\0", "\\0").toWellFormed();
  if (text.length <= MOST_CHARACTERS_OF_AN_ERROR) return text;
  const half = MOST_CHARACTERS_OF_AN_ERROR / 2;
  return `${text.slice(0, half)}\n…\n${text.slice(-half)}`.toWellFormed();
}
