import { PrismaPg } from '@prisma/adapter-pg';
import client from '@prisma/client';

import { tell } from './story.mjs';

const { placeOrder } = await import(process.argv[2]);
const prisma = new client.PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) });
await tell((item, checkStock) => placeOrder(prisma, item, checkStock));
await prisma.$disconnect();
