// Starts the page.

import { App } from "./app.js";

window.__hived.app = new App();
window.__hived.app.open();
