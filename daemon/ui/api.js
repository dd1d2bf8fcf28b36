// Requests to the daemon that the page came from, and how well it answers. Nothing here asks any other origin.
// A 304 costs the daemon next to nothing: each answer is asked for with the ETag of the last one.

import { useEffect, useState } from "./vendor/preact-htm.js";

/**
 * What is known of the connection: when it last answered (ms), what went wrong since, and what it says of itself; `late` is
 * of what is shown what was answered longest ago and is refused since: `at` (ms) and `error`.
 */
export const connection = { answeredAt: Date.now(), trouble: null, stale: null, going: null, late: null, others: [] };

const watchers = new Set();

function told(change) {
  const text = () => JSON.stringify({ ...connection, answeredAt: null });
  const before = text();
  Object.assign(connection, change);
  if (before !== text()) watchers.forEach((watcher) => watcher());
}

/** Renders again whenever the connection changes, and once a second while it is broken. */
export function useConnection() {
  const [, again] = useState(0);
  useEffect(() => {
    const watcher = () => again((count) => count + 1);
    watchers.add(watcher);
    const timer = setInterval(() => connection.trouble && watcher(), 1000);
    return () => {
      watchers.delete(watcher);
      clearInterval(timer);
    };
  }, []);
  return connection;
}

/** An answer that is an error, or none: `status` is its code or 0. `isBrief`: nobody is there to answer, and soon somebody may be. */
class Failed extends Error {
  constructor(message, status, isBrief) {
    super(message);
    Object.assign(this, { status, isBrief });
  }
}

/** The error of a request from then on (ms). One that takes too long says nothing of the connection while others are answered. */
function failed(error, from) {
  const isLate = error.name === "TimeoutError";
  if (!isLate && error.name !== "TypeError") return error;
  if (!isLate || connection.answeredAt < from) told({ trouble: "no answer" });
  return new Failed("no answer", 0, !isLate);
}

async function ask(path, options) {
  const from = Date.now();
  let response;
  try {
    response = await fetch(path, { redirect: "manual", cache: "no-cache", ...options });
  } catch (error) {
    throw failed(error, from);
  }
  if (response.type === "opaqueredirect") {
    goToLeader();
    throw new Failed("another daemon leads", 307, true);
  }
  told({ answeredAt: Date.now(), trouble: null, stale: response.headers.get("meseta-stale") });
  if (!response.ok) throw new Failed(messageOf(await response.text()) || response.statusText, response.status);
  return response;
}

/** What an answer that is an error says: a text, or an object with a message. */
function messageOf(text) {
  if (!text.startsWith("{")) return text;
  try {
    return JSON.parse(text).message ?? text;
  } catch {
    return text;
  }
}

/** What the daemon is and who leads, as it last said; null while it is silent. */
let standing;

/**
 * What the daemon says of itself and of the others, whom the page names when this one does not answer. That costs it next to
 * nothing: while it is silent it is asked this again at once, and everything else when it is back or another daemon leads.
 */
export async function askLeader() {
  try {
    const answer = await get("leader");
    told({ others: (answer.masters ?? answer.schedulers).filter((other) => other !== location.host) });
    const before = standing;
    standing = `${answer.role} ${answer.leader}`;
    if (before !== undefined && before !== standing) changed();
    return answer;
  } catch (error) {
    if (error.status === 0) {
      standing = null;
      error.isBrief = true;
    }
    throw error;
  }
}

/** Where another one's page is with the same part of it: that page knows that this one did not answer. */
export const otherPage = (address) => `//${address}/${url("", { left: location.host })}${location.hash}`;

/** Longer than a lease; what has been left may be back after that. */
const LEFT_MS = 60_000;

/** The address that was left for this one a while ago because it did not answer, if one was. */
const left = () => (performance.now() < LEFT_MS ? new URLSearchParams(location.search).get("left") : null);

/** Follows the leader: its page is the same, at another address. */
async function goToLeader() {
  if (connection.going) return;
  try {
    const leader = (await (await fetch("leader", { cache: "no-cache" })).json()).leader;
    if (!leader || leader === location.host) return told({ trouble: "no leader at the moment" });
    // Until its lease is over, the others name the leader whose page did not answer.
    if (leader === left()) return told({ trouble: `${leader} leads but does not answer; waiting for the next leader` });
    told({ going: leader });
    location.replace(`//${leader}/${location.hash}`);
  } catch {
    told({ trouble: "no answer" });
  }
}

/** The URL of a path with parameters; those that are undefined are left out. */
export function url(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

/** A daemon that stands still closes no connection. */
const ANSWER_MS = 30_000;

async function read(path, as, options) {
  const from = Date.now();
  try {
    return await (await ask(path, { signal: AbortSignal.timeout(ANSWER_MS), ...options }))[as]();
  } catch (error) {
    throw failed(error, from);
  }
}

export const get = (path, parameters) => read(url(path, parameters), "json");

export const getText = (path) => read(path, "text");

/** Sends a change; gives the text of the answer, which is often empty. Without an answer nobody knows whether it was made. */
export async function send(method, path, body) {
  const isForm = body instanceof URLSearchParams;
  const type = isForm ? "application/x-www-form-urlencoded" : "application/json";
  const options = { method, headers: { "Content-Type": type, Accept: "application/json" } };
  if (body !== undefined) options.body = isForm ? body.toString() : JSON.stringify(body);
  try {
    return await read(path, "text", options);
  } catch (error) {
    if (error.status === 0) error.message += ": the change may have been applied";
    throw error;
  }
}

/** A call of the operator API. */
export async function call(type, content = {}) {
  const text = await send("POST", "api/v1", { type, ...content });
  return text ? JSON.parse(text) : {};
}

/** The operator's events, one record after another, until `signal` ends it or the connection breaks. */
export async function subscribe(onEvent, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify({ type: "SUBSCRIBE" }),
    signal,
  };
  const reader = (await ask("api/v1?state=false", options)).body.getReader();
  const decoder = new TextDecoder();
  let pieces = [];
  let held = 0;
  let wanted = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pieces.push(value);
    held += value.length;
    while (wanted === null || held >= wanted) {
      // Pieces are joined only when a record is complete: the first one may be large.
      const bytes = joined(pieces, held);
      pieces = [bytes];
      if (wanted === null) {
        const end = bytes.indexOf(10);
        if (end < 0) break;
        wanted = Number(decoder.decode(bytes.subarray(0, end)));
        pieces = [bytes.subarray(end + 1)];
        held -= end + 1;
      } else {
        onEvent(JSON.parse(decoder.decode(bytes.subarray(0, wanted))));
        pieces = [bytes.subarray(wanted)];
        held -= wanted;
        wanted = null;
      }
    }
  }
}

/**
 * Objects of JSON, one a line, until `signal` ends it or the connection breaks; before the first, one that says that it is
 * open. Space between them is a heartbeat.
 */
export async function lines(path, onEvent, signal) {
  const response = await ask(path, { signal });
  onEvent({ type: "SUBSCRIBED" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    if (!value.trim()) onEvent({ type: "HEARTBEAT" });
    const whole = (held + value).split("\n");
    held = whole.pop();
    whole.forEach((line) => onEvent(JSON.parse(line)));
  }
}

function joined(pieces, length) {
  if (pieces.length === 1) return pieces[0];
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** An answer is not asked for again before so many times as long as it took, a minute at most: large clusters are asked less often. */
const REST = 20;
const PAUSE_MS_MAX = 60_000;

/** What has nothing to show yet is asked for again after so long. */
const FIRST_S_MAX = 5;

/** What is shown and is refused since, by the poll that asks for it. */
const late = new Map();

function noteLate(poll, found) {
  if (found) late.set(poll, found);
  else late.delete(poll);
  told({ late: [...late.values()].sort((a, b) => a.at - b.at)[0] ?? null });
}

/**
 * What `load` gives, asked for again every `seconds` while the page is looked at. After an error the last value stays,
 * beside the error, and the top of the page says of when it is.
 */
export function usePoll(load, dependencies, seconds = 5) {
  const [held, setHeld] = useState({ value: undefined, error: null });
  useEffect(() => {
    let isOver = false;
    let isAsking = false;
    let isDue;
    let at;
    let timer;
    setHeld({ value: undefined, error: null });
    const round = async () => {
      isDue = isAsking;
      if (isAsking) return;
      clearTimeout(timer);
      isAsking = true;
      const from = performance.now();
      let error = null;
      if (!document.hidden) {
        try {
          const value = await load();
          if (!isOver) setHeld({ value, error });
          at = Date.now();
        } catch (found) {
          error = found;
          if (!isOver) setHeld(({ value }) => ({ value, error }));
        }
        // A page says itself that what it shows is there no more.
        if (!isOver) noteLate(round, at && error && error.status !== 404 && { at, error });
      }
      isAsking = false;
      // Of a daemon that answers nothing at all, the time that it took says nothing.
      const took = connection.trouble ? 0 : performance.now() - from;
      const usual = 1000 * (at ? seconds : Math.min(seconds, FIRST_S_MAX));
      const pause = Math.max(usual, Math.min(PAUSE_MS_MAX, REST * took));
      if (!isOver) timer = setTimeout(round, isDue ? 0 : error?.isBrief ? 1000 : pause);
    };
    const seen = () => !document.hidden && !isAsking && round();
    document.addEventListener("visibilitychange", seen);
    document.addEventListener("changed", round);
    round();
    return () => {
      isOver = true;
      clearTimeout(timer);
      noteLate(round);
      document.removeEventListener("visibilitychange", seen);
      document.removeEventListener("changed", round);
    };
  }, dependencies);
  return held;
}

/** Has everything shown be asked for at once, after a change. */
export function changed() {
  document.dispatchEvent(new Event("changed"));
}
