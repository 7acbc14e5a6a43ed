// The host that the tests talk to.
import { Fail, Host, Skip, Snooze, Wait } from "bugle-jobs";

interface Commands {
  add: { a: number; b?: number };
  checked: unknown;
  parsed: unknown;
  greet: { name: string };
  outcome: { kind: string };
  forever: unknown;
  charge: unknown;
  family: unknown;
  enqueues: unknown;
  index: number;
  keep: unknown;
  pages: { text: string };
  broken: number;
  attempts: unknown;
  mute: unknown;
}

const host = new Host<Commands>({ concurrency: 3 });

function pageOf(payload: unknown): { text: string } {
  if (typeof (payload as { text?: unknown }).text !== "string") throw new Error("payload.text is missing");
  return payload as { text: string };
}

host.on("add", ({ payload: { a, b = 1 } }) => a + b);

host.on(
  "checked",
  (payload): { a: number } => {
    if (typeof (payload as { a?: unknown }).a !== "number") throw new Error("a must be a number");
    return payload as { a: number };
  },
  async (job) => job.payload.a * 2,
);

// as zod, valibot and others spell it
const schema = {
  "~standard": {
    validate: (value: unknown) =>
      typeof value === "string" ? { value: value.length } : { issues: [{ message: "not a string", path: ["name"] }] },
    types: undefined as { output: number } | undefined,
  },
};
host.on("parsed", schema, (job) => job.payload + 1);

host.on("greet", async (job) => {
  job.progress(50, "thinking");
  job.log(`greets ${job.payload.name}`);
  return { greeting: `Hello, ${job.payload.name}!`, id: 2n ** 62n };
});

host.on("outcome", async ({ payload: { kind } }) => {
  switch (kind) {
    case "fail":
      throw new Fail("no such address", { code: "address", retryable: false });
    case "later":
      throw new Fail("busy", { retryAfter: 60 });
    case "snooze":
      throw new Snooze(90);
    case "wait":
      return new Wait("token-1", { atMost: 3600 });
    case "skip":
      throw new Skip("nothing to do");
    case "bug":
      return (undefined as unknown as { length: number }).length;
    case "function":
      return () => 1;
    default:
      return undefined;
  }
});

host.on("forever", async (job) => {
  await new Promise((_, reject) => job.signal.addEventListener("abort", () => reject(job.signal.reason)));
});

host.on("charge", (job) => job.step("card", async () => "charged"));

host.on("family", async (job) => {
  const children = await job.children<number>();
  if (children.length > 0) return children.map((child) => child.result);
  return job.spawn([{ command: "add", payload: { a: 1 }, queue: "q" }]);
});

host.on("enqueues", (job) => job.enqueue("add", { a: 1 }, { priority: -5 }));

host.onMany("index", { most: 100 }, async (jobs) => {
  jobs[0]?.done("first");
  return jobs.map((job) => (job.payload % 2 ? new Fail("odd") : job.payload));
});

host.onMany("keep", { most: 10 }, (jobs) => jobs.map((job) => job.payload));

host.onMany("pages", { most: 10, schema: pageOf }, (jobs) => jobs.map((job) => job.payload.text.length));

host.onMany("broken", { most: 10 }, (jobs) => {
  jobs[0]?.done("first");
  throw new Error("odd");
});

host.on("attempts", (job) => [job.attempt, job.maxAttempts]);

host.on("mute", () => {
  throw Object.defineProperty(new Error("mute"), "stack", {
    get: () => {
      throw new Error("no text");
    },
  });
});

await host.run();
