// The form of the questions in the view Decide: one set of fields per question.

import { byId, h } from "./dom.js";
import { BLANK } from "./state.js";

const TYPE_LABELS = { predicate: "yes or no", choice: "choice", score: "score", number: "number" };

const OPTIONS_LABELS = { choice: "Options, one per line", score: "Levels, one per line, lowest first" };

/** The fields of a question. A field without `types` belongs to all; `number` says how to check its text. */
const FIELDS = {
  name: { label: "Name", size: "small", attributes: { placeholder: "none", spellcheck: "false" } },
  instructions: { label: "Question" },
  options: { label: OPTIONS_LABELS.choice, size: "full", types: ["choice", "score"], attributes: { placeholder: "value - description" } },
  minimum: { label: "Minimum", size: "small", types: ["number"], number: { optional: true } },
  maximum: { label: "Maximum", size: "small", types: ["number"], number: { optional: true } },
  step: { label: "Step", size: "small", types: ["number"], number: { optional: true, positive: true } },
  unit: { label: "Unit", size: "small", types: ["number"], attributes: { placeholder: "none" } },
};

/** Lines that are shown of a list of options. */
const ROWS_MIN = 3;
const ROWS_MAX = 8;

const idOf = (index, name) => `question-${index}-${name}`;

/** Draws the forms of all questions. `remove` gets the index of a question. */
export function drawQuestions(questions, remove) {
  byId("questions").replaceChildren(...questions.map((question, index) => form(question, index, questions.length > 1 ? remove : null)));
  questions.forEach((_, index) => showFields(index));
}

function form(question, index, remove) {
  const type = h("select", { id: idOf(index, "type"), onchange: () => showFields(index) },
    Object.entries(TYPE_LABELS).map(([name, label]) => h("option", { value: name }, label)));
  type.value = question.type;
  const typeField = h("div", { class: "field small" }, h("label", { for: type.id }, "Type"), type);
  const fields = Object.entries(FIELDS).map(([name, field]) => input(question, index, name, field));
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Remove question ${index + 1}`, onclick: () => remove(index) }, "Remove");
  return h("fieldset", { class: "question-form" }, h("legend", {}, `Question ${index + 1}`), remove ? button : null,
    h("div", { class: "fields" }, typeField, fields));
}

function input(question, index, name, { label, size = "", number, attributes }) {
  const id = idOf(index, name);
  const tag = name === "options" ? "textarea" : "input";
  const limits = number ? { inputmode: "decimal", placeholder: "any" } : {};
  const lines = question[name].split("\n").length;
  const rows = name === "options" ? Math.min(Math.max(lines, ROWS_MIN), ROWS_MAX) : null;
  const node = h(tag, { id, rows, "data-title": `${label} of question ${index + 1}`, ...limits, ...attributes });
  node.value = question[name];
  return h("div", { class: `field ${size}` }, h("label", { for: id }, label), node);
}

/** Shows the fields that the type of a question has. */
function showFields(index) {
  const type = byId(idOf(index, "type")).value;
  for (const [name, { types }] of Object.entries(FIELDS)) {
    byId(idOf(index, name)).parentNode.hidden = types !== undefined && !types.includes(type);
  }
  byId(idOf(index, "options")).labels[0].textContent = OPTIONS_LABELS[type] ?? OPTIONS_LABELS.choice;
}

/** Reads the forms of `count` questions. */
export function readQuestions(count) {
  const value = (index, name) => byId(idOf(index, name)).value;
  return Array.from({ length: count }, (_, index) => Object.fromEntries(Object.keys(BLANK).map((name) => [name, value(index, name).trim()])));
}

/** The fields with numbers: [{id, ...how to check the text}]. */
export function numberFields(count) {
  const numbers = Object.entries(FIELDS).filter(([, { number }]) => number);
  return Array.from({ length: count }, (_, index) => numbers.map(([name, { number }]) => ({ id: idOf(index, name), ...number }))).flat();
}

export const focusQuestion = (index) => byId(idOf(index, "type")).focus();

/** Fields of a request for decisions outside of its questions. */
const OTHER_FIELDS = { input: "about", x_read: "read", x_orders: "orders", x_coverage: "coverage" };

/** The field of the form for a field of a request, such as `questions[0].choices[1].value`, or null. */
export function fieldOf(param) {
  const [, index, name] = /^questions\[(\d+)\](?:\.(\w+))?/.exec(param) ?? [];
  const other = OTHER_FIELDS[name ?? param];
  if (other) return byId(other);
  const field = { choices: "options", levels: "options" }[name] ?? name ?? "instructions";
  return byId(idOf(index, field));
}
