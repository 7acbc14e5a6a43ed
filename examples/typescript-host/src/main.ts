import { host } from "./jobs.js";

await host.run();
