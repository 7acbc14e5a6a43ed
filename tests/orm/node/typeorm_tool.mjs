// Bring the database in line with the entities.
import { DataSource } from 'typeorm';

import { Job, Order } from './shop.mjs';

const dataSource = new DataSource({
  type: 'postgres',
  url: process.env.DATABASE_URL,
  entities: [Order, Job],
  synchronize: true,
});
await dataSource.initialize();
await dataSource.destroy();
