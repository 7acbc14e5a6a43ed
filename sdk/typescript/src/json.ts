/** JSON of a value. A bigint becomes a string, as ids do. */
export function toJson(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    if (!(error instanceof TypeError) || !error.message.includes("BigInt")) throw error;
    text = JSON.stringify(value, (_, one) => (typeof one === "bigint" ? one.toString() : one));
  }
  if (text === undefined) throw new TypeError(`a ${typeof value} cannot be stored as JSON`);
  return text;
}

/** A value as a message to people shows it. */
export function show(value: unknown): string {
  let text: string | undefined;
  try {
    text = typeof value === "object" || typeof value === "string" ? JSON.stringify(value) : undefined;
  } catch {
    // such as a circular structure
  }
  return (text ?? String(value)).slice(0, 100);
}
