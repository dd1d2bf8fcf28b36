// What the reader may do, as the master says it: nothing is offered that would be refused.

import { createContext, useContext } from "./vendor/preact-htm.js";

/** The answer of `/rights`; null before it is there. */
export const Rights = createContext(null);

export const useRights = () => useContext(Rights);

/** Whether the reader may act on this object; without an object, on any at all. */
export function may(rights, action, object) {
  const extent = rights?.actions[action];
  if (!extent) return false;
  if (extent.others) return true;
  if (object === undefined) return extent.named.length > 0;
  return extent.named.some((name) => name === object || (name.endsWith("/%") && object.startsWith(name.slice(0, -1))));
}

/** The only objects that there are for an action; null where they cannot all be named. */
export function choices(rights, action) {
  const extent = rights?.actions[action];
  const isWhole = extent && !extent.others && !extent.named.some((name) => name.endsWith("/%"));
  return isWhole ? extent.named : null;
}
