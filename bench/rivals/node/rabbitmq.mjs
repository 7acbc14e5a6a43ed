// RabbitMQ through amqplib (npm): one quorum queue, publisher confirms, manual acknowledgements. Same argv as
// graphile.mjs; the worker's concurrency is its prefetch. env: AMQP_URL
import { connect } from 'amqplib';
import { makeHandler, single, rate, out, now } from './lib.mjs';
const [cmd, a, b, c] = process.argv.slice(2);
const Q = 'bench';
const channels = (n) => Promise.all(Array.from({ length: n }, async () => {
  const connection = await connect(process.env.AMQP_URL, { noDelay: true });
  return connection.createConfirmChannel();
}));
const send = (channel, payload, done) =>
  channel.sendToQueue(Q, Buffer.from(JSON.stringify(payload)), { persistent: true }, done);
// resolves when the node has confirmed the message
const publish = (channel, payload) =>
  new Promise((resolve, reject) => send(channel, payload, (error) => (error ? reject(error) : resolve())));

if (cmd === 'setup') {
  const [channel] = await channels(1);
  await channel.deleteQueue(Q);
  await channel.assertQueue(Q, { durable: true, arguments: { 'x-queue-type': 'quorum' } });
} else if (cmd === 'bulk') {
  const n = +a, batch = +b, [channel] = await channels(1);
  const t0 = now();
  for (let i = 0; i < n; i += batch) {
    for (let j = i; j < Math.min(n, i + batch); j++) {
      if (!send(channel, { k: 'noop', i: j })) await new Promise((resolve) => channel.once('drain', resolve));
    }
    await channel.waitForConfirms();
  }
  out(JSON.stringify({ seconds: (now() - t0) / 1e9 }));
} else if (cmd === 'single') {
  const all = await channels(+b);
  out(JSON.stringify({ seconds: await single(+a, all.length, (p, client) => publish(all[client], p)) }));
} else if (cmd === 'rate') {
  const all = await channels(+c);
  out(JSON.stringify(await rate(+a, +b, all.length, (p, client) => publish(all[client], p))));
} else if (cmd === 'sleepjob') {
  const [channel] = await channels(1);
  await publish(channel, { k: 'sleep', ms: +a });
  out('{}');
} else if (cmd === 'worker') {
  const handle = makeHandler(+b);
  const connection = await connect(process.env.AMQP_URL, { noDelay: true });
  const channel = await connection.createChannel();
  await channel.prefetch(+a);
  await channel.consume(Q, async (message) => {
    await handle(JSON.parse(message.content));
    channel.ack(message);
  });
  out(`READY ${now()}`);
  await new Promise(() => {});
}
process.exit(0);
