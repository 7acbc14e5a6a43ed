import { DataSource } from 'typeorm';

import { Job, Order, placeOrder } from './shop.mjs';
import { tell } from './story.mjs';

const dataSource = new DataSource({ type: 'postgres', url: process.env.DATABASE_URL, entities: [Order, Job] });
await dataSource.initialize();
await tell((item, checkStock) => placeOrder(dataSource, item, checkStock));
await dataSource.destroy();
