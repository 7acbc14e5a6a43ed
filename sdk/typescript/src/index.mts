// The door for `import`. There is one implementation, so that `instanceof` means the same behind both doors.
export * from "./index.js";
