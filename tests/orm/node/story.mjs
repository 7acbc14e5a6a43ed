// An order of coffee is refused after both rows were inserted; orders of tea are placed.
class OutOfStock extends Error {}

async function checkStock(item) {
  if (item === 'coffee') throw new OutOfStock(item);
}

export async function tell(placeOrder) {
  try {
    await placeOrder('coffee', checkStock);
  } catch (error) {
    if (!(error instanceof OutOfStock)) throw error;
    console.log('rolled back');
  }
  for (let round = 0; round < Number(process.env.ROUNDS ?? 1); round++) {
    const { order, job } = await placeOrder('tea', checkStock);
    console.log(`committed ${order} ${job}`);
  }
}
