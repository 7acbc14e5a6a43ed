/**
 * Run and enqueue jobs of Bugle, the job queue for Postgres.
 *
 * ```ts
 * import { Fail, Host } from "bugle-jobs";
 *
 * const host = new Host<{ send_mail: { to: string; subject?: string } }>();
 *
 * host.on("send_mail", async (job) => {
 *   if (!job.payload.to.includes("@")) throw new Fail("no such address", { retryable: false });
 *   job.progress(50, "connecting");
 *   return { sent_to: job.payload.to };
 * });
 *
 * await host.run();
 * ```
 *
 * @packageDocumentation
 */
export { enqueue, enqueueMany, type Client } from "./enqueue.js";
export {
  Host,
  type Around,
  type BatchFunction,
  type BatchOptions,
  type HostOptions,
  type JobFunction,
  type Schema,
} from "./host.js";
export { Job, type Chain, type Ended, type LogLevel } from "./job.js";
export { type Interval, type NewJob, type NewJobOf, type Options, type Time } from "./newJob.js";
export { BadPayload, CallFailed, Cancelled, ClaimLost, Fail, Outcome, Skip, Snooze, Wait } from "./outcomes.js";
