// A worker that says what a test tells it, over a real socket to a real process.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const PROGRAM = fileURLToPath(new URL("program.mjs", import.meta.url));

const OUTCOMES = ["done", "fail", "snooze", "wait", "skip", "cancelled", "settled"];

export class ScriptedWorker {
  hello: any;
  output = "";
  #folder = "";
  #socket!: Socket;
  #lines!: AsyncIterator<string>;
  #process!: ChildProcess;

  static async start(): Promise<ScriptedWorker> {
    const worker = new ScriptedWorker();
    worker.#folder = await mkdtemp(join(tmpdir(), "bugle-test-"));
    const path = join(worker.#folder, "host");
    const server = createServer();
    server.listen(path);
    await once(server, "listening");
    worker.#process = spawn(process.execPath, [PROGRAM], { env: { ...process.env, BUGLE_HOST: path } });
    for (const stream of [worker.#process.stdout, worker.#process.stderr]) {
      stream?.on("data", (data) => (worker.output += data));
    }
    [worker.#socket] = (await once(server, "connection")) as [Socket];
    server.close();
    worker.#lines = createInterface({ input: worker.#socket, crlfDelay: Infinity })[Symbol.asyncIterator]();
    worker.hello = await worker.receive();
    worker.send({ type: "welcome", protocol: 1, host: "test", process: 1, concurrency: 4, worker: "w" });
    return worker;
  }

  sendRaw(data: string | Buffer): void {
    this.#socket.write(data);
  }

  send(message: unknown): void {
    this.sendRaw(`${JSON.stringify(message)}\n`);
  }

  job(id: number, command: string, payload: unknown = {}): void {
    this.send({ type: "job", id: String(id), claim: "1", command, attempt: 1, payload });
  }

  batch(command: string, payloads: unknown[]): void {
    const jobs = payloads.map((payload, id) => ({ id: String(id), claim: "1", attempt: 1, payload }));
    this.send({ type: "jobs", command, jobs });
  }

  async receive(): Promise<any> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`the host has closed the connection:\n${this.output}`);
    const { claim, ...message } = JSON.parse(value);
    // every outcome names the claim, and nothing else does
    if ((claim === "1") !== OUTCOMES.includes(message.type)) throw new Error(`claim ${claim} in ${value}`);
    return message;
  }

  /** This number of outcomes, by the ids of their jobs. */
  async receiveAll(count: number): Promise<Record<string, any>> {
    const found: Record<string, any> = {};
    for (let n = 0; n < count; n++) {
      const one = await this.receive();
      found[one.id] = one;
    }
    return found;
  }

  /** End the connection, and wait until the host has exited. */
  async close(): Promise<number | null> {
    this.#socket.destroy();
    if (this.#process.exitCode === null) await once(this.#process, "exit");
    await rm(this.#folder, { recursive: true, force: true });
    return this.#process.exitCode;
  }
}
