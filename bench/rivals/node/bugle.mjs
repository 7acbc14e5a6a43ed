// Bugle with functions in Node: the package bugle-jobs of sdk/typescript, built. argv as graphile.mjs; env: PGURL, BUGLE (the
// program), BUGLE_JOBS_NODE (the package). Jobs are enqueued with the package over pg; the worker starts this program once
// more, as a host.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
const { PGURL: URL_, BUGLE = 'bugle', BUGLE_JOBS_NODE } = process.env;
const [cmd, a, b, c] = process.argv.slice(2);
const bugleJobs = () => import(join(BUGLE_JOBS_NODE, 'dist/index.mjs'));
const clients = async (n) => {
  const { default: pg } = await import('pg');
  const all = Array.from({ length: n }, () => new pg.Client({ connectionString: URL_ }));
  await Promise.all(all.map((one) => one.connect()));
  return all;
};

if (cmd === 'setup') {
  execFileSync(BUGLE, ['bench', 'peer', 'setup'], { stdio: 'inherit' });
} else if (cmd === 'serve') {
  // stdout belongs to the worker's log: what the harness reads goes to the first process' stdout, under this number
  const { Host } = await bugleJobs();
  process.env.RIVAL_FD = String(openSync(process.env.RIVAL_OUT, 'w'));
  const { makeHandler, out, now } = await import('./lib.mjs');
  const handle = makeHandler(+process.env.RIVAL_EXPECT);
  const host = new Host({ concurrency: +process.env.RIVAL_CONC }).on('bench', (job) => handle(job.payload));
  setTimeout(() => out(`READY ${now()}`), 700);
  await host.run();
  process.emit('SIGTERM'); // the handler tells its statistics
} else if (cmd === 'worker') {
  const folder = mkdtempSync(join(tmpdir(), 'rival-'));
  const env = { RIVAL_OUT: `/proc/${process.pid}/fd/1`, RIVAL_CONC: a, RIVAL_EXPECT: b, BUGLE_JOBS_NODE };
  const names = Object.entries(env).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  const program = JSON.stringify([process.execPath, fileURLToPath(import.meta.url), 'serve']);
  const file = `[queues]\ndefault = ${a}\n[hosts.bench]\nprogram = ${program}\nenv = { ${names.join(', ')} }\n`;
  writeFileSync(join(folder, 'worker.toml'), file);
  const argv = ['worker', '--config', join(folder, 'worker.toml'), '--workdir', folder, '--log', 'warn'];
  const worker = spawn(BUGLE, argv, { env: { ...process.env, BUGLE_DATABASE_URL: URL_ }, stdio: ['ignore', 2, 2] });
  process.on('SIGTERM', () => worker.kill());
  worker.on('exit', (code) => {
    rmSync(folder, { recursive: true, force: true });
    process.exit(code ?? 1);
  });
} else {
  const { enqueue, enqueueMany } = await bugleJobs();
  const { single, rate, out, now } = await import('./lib.mjs');
  const all = await clients(+({ single: b, rate: c }[cmd] ?? 1));
  const one = (payload, client) => enqueue(all[client], 'bench', payload);
  if (cmd === 'bulk') {
    const n = +a, batch = +b, t0 = now();
    for (let i = 0; i < n; i += batch) {
      const jobs = [];
      for (let j = i; j < Math.min(n, i + batch); j++) jobs.push({ command: 'bench', payload: { k: 'noop', i: j } });
      await enqueueMany(all[0], jobs);
    }
    out(JSON.stringify({ seconds: (now() - t0) / 1e9 }));
  } else if (cmd === 'single') {
    out(JSON.stringify({ seconds: await single(+a, all.length, one) }));
  } else if (cmd === 'rate') {
    out(JSON.stringify(await rate(+a, +b, all.length, one)));
  } else {
    await enqueue(all[0], 'bench', { k: 'sleep', ms: +a });
    out('{}');
  }
  await Promise.all(all.map((client) => client.end()));
}
