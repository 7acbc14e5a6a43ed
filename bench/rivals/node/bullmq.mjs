// BullMQ (npm) on Redis. Same argv as graphile.mjs. Completed jobs are not kept. env: REDIS_SOCKET; BULLMQ_STALLED_MS
// (how often stalled jobs are looked for, and how long a lock lasts: 30 s each by default)
import { Queue, Worker } from 'bullmq';
import { makeHandler, single, rate, out, now } from './lib.mjs';
const connection = { path: process.env.REDIS_SOCKET, maxRetriesPerRequest: null };
const [cmd, a, b, c] = process.argv.slice(2);
const queues = async (n) => {
  const all = Array.from({ length: n }, () => new Queue('bench', { connection }));
  await Promise.all(all.map((queue) => queue.waitUntilReady()));
  return all;
};

if (cmd === 'setup') {
  await queues(1);
} else if (cmd === 'bulk') {
  const n = +a, batch = +b, [queue] = await queues(1);
  const t0 = now();
  for (let i = 0; i < n; i += batch) {
    const jobs = [];
    for (let j = i; j < Math.min(n, i + batch); j++) jobs.push({ name: 'bench', data: { k: 'noop', i: j } });
    await queue.addBulk(jobs);
  }
  out(JSON.stringify({ seconds: (now() - t0) / 1e9 }));
} else if (cmd === 'single') {
  const all = await queues(+b);
  out(JSON.stringify({ seconds: await single(+a, all.length, (p, client) => all[client].add('bench', p)) }));
} else if (cmd === 'rate') {
  const all = await queues(+c);
  out(JSON.stringify(await rate(+a, +b, all.length, (p, client) => all[client].add('bench', p))));
} else if (cmd === 'sleepjob') {
  const [queue] = await queues(1);
  await queue.add('bench', { k: 'sleep', ms: +a });
  out('{}');
} else if (cmd === 'worker') {
  const handle = makeHandler(+b);
  const stalled = +(process.env.BULLMQ_STALLED_MS || 30000);
  const worker = new Worker('bench', (job) => handle(job.data), {
    connection, concurrency: +a, removeOnComplete: { count: 0 }, stalledInterval: stalled, lockDuration: stalled,
  });
  worker.on('error', (error) => console.error(error));
  await worker.waitUntilReady();
  out(`READY ${now()}`);
  await new Promise(() => {});
}
process.exit(0);
