// A host with the package bugle-jobs, as an application has it.
const { Host } = require("bugle-jobs");

const host = new Host();

host.on("noop", async () => {});

host.on("stamp", async (job) => ({ t0: job.payload.t0, t: Number(process.hrtime.bigint()) }));

host.run();
