// Outcomes of a job other than a result: throw one of these, or return it.
import { show } from "./json.js";

/** A number of seconds; a RangeError for one that Bugle would reject. */
export function seconds(duration: number, what: string): number {
  if (typeof duration !== "number" || !Number.isFinite(duration) || duration < 0) {
    throw new RangeError(`${what} must be a number of seconds, 0 or more, not ${show(duration)}`);
  }
  return duration;
}

/** A text, or undefined; a TypeError for what the worker would reject. */
export function text(value: string | null | undefined, what: string): string | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string") throw new TypeError(`${what} must be a string, not ${show(value)}`);
  return value;
}

/** The base class of all outcomes. */
export abstract class Outcome extends Error {
  /** The type of the message. */
  abstract readonly type: string;

  /** The fields of the message. Those that are undefined are not sent. */
  abstract fields(): Record<string, unknown>;

  override get name(): string {
    return this.constructor.name;
  }
}

/** The attempt failed. It is retried by the job's policy, or after `retryAfter` seconds, or not at all. */
export class Fail extends Outcome {
  readonly type = "fail";
  /** Groups failures of the same cause: what alerts and filters use. */
  readonly code: string | undefined;
  readonly retryable: boolean;
  readonly retryAfter: number | undefined;

  constructor(
    error: string,
    options: { code?: string; retryable?: boolean; retryAfter?: number; cause?: unknown } = {},
  ) {
    super(error, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = text(options.code, "the code of a failure");
    this.retryable = options.retryable ?? true;
    if (typeof this.retryable !== "boolean") {
      throw new TypeError(`retryable must be true or false, not ${show(options.retryable)}`);
    }
    this.retryAfter = options.retryAfter === undefined ? undefined : seconds(options.retryAfter, "retryAfter");
  }

  fields(): Record<string, unknown> {
    return { error: this.message, code: this.code, retryable: this.retryable, retry_after: this.retryAfter };
  }
}

/** Run the job again after this many seconds. The attempt is not counted. */
export class Snooze extends Outcome {
  readonly type = "snooze";
  readonly delay: number;

  constructor(delay: number) {
    super(`again in ${delay} seconds`);
    this.delay = seconds(delay, "the delay");
  }

  fields(): Record<string, unknown> {
    return { delay: this.delay };
  }
}

/** The job waits for a result, or for an answer to continue with, from outside. */
export class Wait extends Outcome {
  readonly type = "wait";
  readonly token: string | undefined;
  readonly atMost: number | undefined;

  constructor(token?: string, options: { atMost?: number } = {}) {
    super("waits for an answer");
    this.token = text(token, "the token");
    this.atMost = options.atMost === undefined ? undefined : seconds(options.atMost, "atMost");
  }

  fields(): Record<string, unknown> {
    return { token: this.token, at_most: this.atMost };
  }
}

/** Skip this step of a chain. A job that is not a chain is completed. */
export class Skip extends Outcome {
  readonly type = "skip";
  readonly reason: string | undefined;

  constructor(reason?: string) {
    super(reason ?? "skipped");
    this.reason = text(reason, "the reason");
  }

  fields(): Record<string, unknown> {
    return { reason: this.reason };
  }
}

/** There is nothing left to do: the job is cancelled. Also the reason of `job.signal`: let it pass. */
export class Cancelled extends Outcome {
  readonly type = "cancelled";
  readonly reason: string | undefined;

  constructor(reason?: string) {
    super(reason ?? "cancelled");
    this.reason = text(reason, "the reason");
  }

  fields(): Record<string, unknown> {
    return { reason: this.reason };
  }
}

/** The payload does not fit the function. It is not retried. */
export class BadPayload extends Fail {
  constructor(error: string) {
    super(error, { code: "bad_payload", retryable: false });
  }
}

/** The worker rejected a call: `code` says why. If it is not caught, the attempt fails with it. */
export class CallFailed extends Fail {
  constructor(error: string, code: string) {
    super(error, { code });
  }
}

/** Another worker has the job now. Thrown by `completeIn` inside your transaction: roll back. */
export class ClaimLost extends Fail {
  constructor(verdict: string) {
    super(`the job is not held by this worker any more (${verdict})`, { code: "fenced" });
  }
}
