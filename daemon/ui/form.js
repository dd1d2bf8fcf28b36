// A form that changes something: shows the same as a command, asks before what ends tasks, and says what came of it.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { changed } from "./api.js";
import { Command, Confirm } from "./parts.js";
import { choices, useRights } from "./rights.js";

const AWAITED_S = 60;
const POLL_MS = 500;

/**
 * Waits until `isDone` gives a text, a minute at most. The change is taken by then: a look that fails does not say that it
 * was not made, but for one that finds nothing there any more.
 */
export async function awaited(isDone, otherwise) {
  const until = Date.now() + AWAITED_S * 1000;
  let failed;
  while (Date.now() < until) {
    try {
      const text = await isDone();
      if (text) return text;
      failed = null;
    } catch (error) {
      if (error.status === 404) throw error;
      failed = error;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  return failed ? `Accepted, but the result is unknown: ${failed.message}` : otherwise;
}

/** A field with the only values that its action permits, where these are known. */
function limited(field, rights) {
  const only = field.action && choices(rights, field.action);
  return only ? { ...field, choices: only } : field;
}

/**
 * A change: its fields, the command that does the same, and what came of it. `run` is given them and the reader's rights and gives the text that says so; with `asks`
 * there is a question first. `given` are the values that the fields begin with.
 */
export function Form({ form, given }) {
  const rights = useRights();
  const fields = form.fields.map((field) => limited(field, rights));
  const [typed, setTyped] = useState(() =>
    Object.fromEntries(fields.map((field) => [field.name, given[field.name] ?? field.choices?.[0] ?? ""])));
  // What could be chosen may have changed since.
  const shown = Object.fromEntries(fields.map(({ name, choices: all }) =>
    [name, all && !all.includes(typed[name]) ? all[0] : typed[name]]));
  const values = Object.fromEntries(Object.entries(shown).map(([name, value]) => [name, value?.trim()]));
  const [outcome, setOutcome] = useState(null);
  // The question and what it is about, as they were when it was asked: what is shown may become another's meanwhile.
  const [asked, setAsked] = useState(null);
  const [isRunning, setRunning] = useState(false);
  const run = async ({ values, form }) => {
    setAsked(null);
    setRunning(true);
    setOutcome({ text: "Waiting for the outcome …" });
    try {
      setOutcome({ text: await form.run(values, rights ?? {}) });
      changed();
    } catch (error) {
      setOutcome({ text: error.message, isBad: true });
    }
    setRunning(false);
  };
  const submit = (event) => {
    event.preventDefault();
    const question = form.asks?.(values);
    if (question) setAsked({ values, form, question });
    else run({ values, form });
  };
  const isChanged = asked && fields.some(({ name, choices: all }) => all && !all.includes(asked.values[name]));
  useEffect(() => {
    if (!isChanged) return;
    setAsked(null);
    setOutcome({ text: "Not done: the state has changed meanwhile.", isBad: true });
  }, [isChanged]);
  const set = (name) => (event) => setTyped((last) => ({ ...last, [name]: event.target.value }));
  const isFilled = fields.every((field) => !field.isNeeded || values[field.name]);
  return html`<form id="form-${form.id}" onSubmit=${submit} aria-labelledby="title-${form.id}">
    <h3 id="title-${form.id}">${form.title}</h3>
    ${fields.map((field) => html`<label>${field.label}<${Field} field=${field} value=${shown[field.name]} set=${set(field.name)} /></label>`)}
    ${isFilled && html`<${Command} text=${form.command(values)} />`}
    <button type="submit" class=${form.asks ? "danger" : ""} disabled=${isRunning}>${form.verb ?? form.title}${form.asks ? " …" : ""}</button>
    ${outcome && html`<p class=${outcome.isBad ? "trouble" : "outcome"} role=${outcome.isBad ? "alert" : "status"}>${outcome.text}</p>`}
    ${asked && html`<${Confirm} question=${asked.question} detail=${html`The same as <code>${asked.form.command(asked.values)}</code>`}
      verb=${form.verb} onYes=${() => run(asked)} onNo=${() => setAsked(null)} />`}
  </form>`;
}

function Field({ field, value, set }) {
  if (field.choices) {
    return html`<select name=${field.name} value=${value} onChange=${set}>${field.choices.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
  }
  return html`<input name=${field.name} type=${field.type ?? "text"} step="any" list=${field.list} value=${value} placeholder=${field.hint}
    required=${field.isNeeded} autocomplete="off" spellcheck=${false} onInput=${set} />`;
}
