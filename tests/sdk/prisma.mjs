// The order and its job are stored together by Prisma, or neither is.
import assert from 'node:assert/strict';

import { PrismaPg } from '@prisma/adapter-pg';
import client from './generated/index.js';

const { enqueue, enqueueMany } = await import(process.argv[2]);
const prisma = new client.PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) });
const payload = { text: 'it\'s "$1"' };
for (const undo of [true, false]) {
  const placed = prisma.$transaction(async (tx) => {
    const job = await enqueue(tx, 'ship', payload, { unique_key: 'key', delay: 1 });
    assert.equal(await enqueue(tx, 'ship', payload, { unique_key: 'key' }), job);
    const jobs = await enqueueMany(tx, [{ command: 'ship' }, { command: 'ship', queue: 'slow' }]);
    assert.equal(new Set([job, ...jobs]).size, 3);
    if (undo) throw new Error('undone');
  });
  if (undo) await assert.rejects(placed, /undone/);
  else await placed;
}
await prisma.$disconnect();
console.log('Prisma');
