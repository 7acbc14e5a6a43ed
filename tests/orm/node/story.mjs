// Orders of tea are placed; orders of coffee are refused after both rows were inserted.
class OutOfStock extends Error {}

async function checkStock(item) {
  if (item === 'coffee') throw new OutOfStock(item);
}

export async function tell(placeOrder) {
  for (let round = 0; round < Number(process.env.ROUNDS ?? 1); round++) {
    const { order, job } = await placeOrder('tea', checkStock);
    console.log(`committed ${order} ${job}`);
    try {
      await placeOrder('coffee', checkStock);
    } catch (error) {
      if (!(error instanceof OutOfStock)) throw error;
      console.log('rolled back');
    }
  }
}
