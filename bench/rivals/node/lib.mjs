// Shared plumbing of the Node rivals. Times are CLOCK_MONOTONIC nanoseconds, the same clock
// Python's time.monotonic_ns() and Rust's clock_gettime(CLOCK_MONOTONIC) read on Linux, so
// stamps may be compared across processes.
import { writeSync } from 'node:fs';
export const now = () => Number(process.hrtime.bigint());
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
export function out(s) {
  const b = Buffer.from(s + '\n');
  let o = 0;
  while (o < b.length) {
    try { o += writeSync(+(process.env.RIVAL_FD ?? 1), b, o); } catch (e) { if (e.code !== 'EAGAIN') throw e; }
  }
}

// The one job handler all Node rivals run. payload: {k:'noop',i} | {k:'lat',t0} | {k:'sleep',ms}
export function makeHandler(expect) {
  let total = 0, uniq = 0, dups = 0;
  const seen = new Uint8Array(Math.max(expect, 1));
  const stats = () => out(`STATS ${total} ${uniq} ${dups}`);
  process.on('SIGTERM', () => { stats(); process.exit(0); });
  process.on('SIGINT', () => { stats(); process.exit(0); });
  return async function handle(p) {
    const t = now();
    if (p.k === 'lat') { out(`LAT ${p.t0} ${t}`); return; }
    if (p.k === 'sleep') { out(`START ${t} ${process.pid}`); await sleep(p.ms); out(`END ${now()}`); return; }
    total++;
    if (total === 1) out(`FIRST ${t}`);
    if (total % 1000 === 0) out(`PROG ${total} ${t}`);
    if (p.i < expect) {
      if (seen[p.i]) dups++;
      else { seen[p.i] = 1; uniq++; if (uniq === expect) out(`HANDLED ${uniq} ${t}`); }
    }
  };
}

// n single enqueues over `conns` parallel loops
export async function single(n, conns, enqueue) {
  let next = 0;
  const t0 = now();
  await Promise.all(Array.from({ length: conns }, async (_, c) => {
    for (;;) { const i = next++; if (i >= n) return; await enqueue({ k: 'noop', i }, c); }
  }));
  return (now() - t0) / 1e9;
}

// open loop: `rate` jobs/s for `secs` seconds over `conns` loops; job i is due at start + i/rate
export async function rate(perS, secs, conns, enqueue) {
  const step = 1e9 / perS, total = Math.round(perS * secs);
  const start = now() + 50e6, end = start + secs * 1e9;
  let made = 0;
  await Promise.all(Array.from({ length: conns }, async (_, c) => {
    for (let i = c; i < total; i += conns) {
      const due = start + i * step;
      const w = (due - now()) / 1e6;
      if (w > 0) await sleep(w);
      const t0 = now();
      if (t0 > end + 1e9) return;
      await enqueue({ k: 'lat', t0 }, c);
      made++;
    }
  }));
  return { produced: made, seconds: (now() - start) / 1e9 };
}
