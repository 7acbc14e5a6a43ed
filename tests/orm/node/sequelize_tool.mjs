// Create, alter, drop and create again what the models say.
import { Sequelize } from 'sequelize';

import { define } from './shop.mjs';

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false });
define(sequelize);
for (const options of [{}, { alter: true }, { force: true }]) await sequelize.sync(options);
await sequelize.close();
