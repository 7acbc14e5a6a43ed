import { Sequelize } from 'sequelize';

import { define, placeOrder } from './shop.mjs';
import { tell } from './story.mjs';

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false });
define(sequelize);
await tell((item, checkStock) => placeOrder(sequelize, item, checkStock));
await sequelize.close();
