import { drizzle } from 'drizzle-orm/node-postgres';

import { placeOrder } from './shop.mjs';
import { tell } from './story.mjs';

const db = drizzle(process.env.DATABASE_URL);
await tell((item, checkStock) => placeOrder(db, item, checkStock));
await db.$client.end();
