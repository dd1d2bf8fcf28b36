// The browser, and what must not happen in any of its pages.

import { chromium } from "playwright-core";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

export const OPTIONS = { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS, headless: true };

/** What went wrong in pages that are watched. */
export const problems = [];

/** The page's requests must go to the origin that the page came from, unless it is another's page; a link may lead to an agent's. */
export function watch(watched, { isForeign = false } = {}) {
  watched.on("request", (request) => {
    const to = new URL(request.url());
    const from = request.frame().url();
    const isOwn = request.isNavigationRequest() || to.origin === new URL(from).origin;
    if (isForeign) return;
    if (!isOwn) problems.push(`request to another origin: ${request.url()} from ${from}`);
    if (/\/state$/.test(to.pathname)) problems.push(`asked for ${to.pathname}`);
  });
  watched.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  watched.on("pageerror", (error) => problems.push(`error in the page: ${error.stack}`));
  watched.on("dialog", (dialog) => {
    problems.push(`markup ran: ${dialog.message()}`);
    dialog.dismiss();
  });
}

/** Does what breaks connections; the browser itself reports requests that fail meanwhile, which is no problem. */
export async function breaking(body) {
  const before = problems.length;
  await body();
  problems.push(...problems.splice(before).filter((text) => !/net::ERR_|status of 503/.test(text)));
}

/** A browser of its own, whose pages sign in with these credentials; ended after `body`. */
export async function signedInAs(credentials, body) {
  const browser = await chromium.launch(OPTIONS);
  try {
    const context = await browser.newContext({ httpCredentials: credentials });
    await body(await context.newPage());
  } finally {
    await browser.close();
  }
}

/** The texts of a table's cells, by row; the first of each row is its head. */
export async function rowsOf(page, caption) {
  const table = page.getByRole("table", { name: caption, exact: true });
  await table.waitFor();
  return table.locator("tbody tr").evaluateAll((all) =>
    all.map((row) => [...row.children].map((cell) => cell.textContent.replace(/\s+/g, " ").trim())));
}
