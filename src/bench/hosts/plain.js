// A host without a package: the least that Node does for a job.
const worker = require("node:net").connect(process.env.BUGLE_HOST);

function result(job) {
  if (job.command !== "stamp") return null;
  return { t0: job.payload.t0, t: Number(process.hrtime.bigint()) };
}

function answer(message) {
  if (message.type === "job") {
    return { type: "done", id: message.id, claim: message.claim, result: result(message) };
  }
  return message.type === "ping" ? { type: "pong" } : undefined;
}

function send(messages) {
  worker.write(messages.map((message) => JSON.stringify(message) + "\n").join(""));
}

let rest = "";
worker.setEncoding("utf8");
worker.on("data", (data) => {
  const lines = (rest + data).split("\n");
  rest = lines.pop();
  // one write for all that is there
  send(lines.map((line) => answer(JSON.parse(line))).filter(Boolean));
});
send([{ type: "hello", protocol: 1, commands: ["noop", "stamp"], language: "node" }]);
