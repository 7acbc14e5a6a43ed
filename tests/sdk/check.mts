// What `bugle host check` asks of a host.
import { Fail, Host, type NewJob, Skip, Snooze, Wait } from "bugle-jobs";

const host = new Host({ concurrency: 8 });

host.on("check.echo", (job) => job.payload);
host.on("check.fail", ({ payload: { error, code, retryable, retry_after } }) => {
  throw new Fail(error, { code, retryable, retryAfter: retry_after });
});
host.on("check.stop", async (job) => {
  await new Promise((_, reject) => job.signal.addEventListener("abort", () => reject(job.signal.reason)));
});
host.on("check.snooze", (job) => new Snooze(job.payload.delay));
host.on("check.wait", (job) => new Wait(job.payload.token, { atMost: job.payload.at_most }));
host.on("check.skip", (job) => new Skip(job.payload.reason));
host.on("check.progress", (job) => job.progress(job.payload.percent, job.payload.note));
host.on("check.step", (job) => job.step("check", () => job.payload.output));
host.on("check.spawn", async (job) => {
  const children = await job.children();
  if (children.length > 0) return children.map((child) => child.result);
  return job.spawn(job.payload as NewJob[]);
});
host.on("check.enqueue", (job) => job.enqueueMany(job.payload as NewJob[]));
host.onMany("check.batch", { most: 10 }, (jobs) => jobs.map((job) => job.payload));
host.onMany("check.batch_fail", { most: 10 }, () => {
  throw new Error("the call has failed");
});

await host.run();
