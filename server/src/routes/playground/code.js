// The request of a state as code.

import { isInvisible } from "./dom.js";
import { CHAT, COMPLETIONS, DECISIONS, DESCRIBED, codeRequest, decisionOptions, limitsOf, optionsOf } from "./requests.js";

/** JSON of one kind of character only: nothing in it can hide from the reader of the code. */
function json(value, indent) {
  return Array.from(JSON.stringify(value, null, indent), (character) => {
    if (!isInvisible(character) || character === "\n") return character;
    const units = Array.from({ length: character.length }, (_, index) => character.charCodeAt(index));
    return units.map((unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("");
  }).join("");
}

export function curl(state, model, keys) {
  const { path, body } = codeRequest(state, model);
  const data = json(body, 1).replaceAll("'", "'\\''");
  const key = keys ? ` \\\n  -H "Authorization: Bearer $NTL_API_KEY"` : "";
  return `curl ${new URL(path, document.baseURI)} -H 'Content-Type: application/json'${key} \\\n  -d '${data}'\n`;
}

/** Fields that OpenAI's client has no parameters for. */
const EXTRA_FIELDS = ["continue_final_message", "add_generation_prompt", "number", "x_read", "x_orders", "x_coverage"];

// JSON is valid Python except for three words.
const WORDS = { true: "True", false: "False", null: "None" };

function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value !== null && typeof value === "object") return dictionary(Object.entries(value));
  return WORDS[value] && typeof value !== "string" ? WORDS[value] : json(value);
}

const dictionary = (entries) => `{${entries.map(([name, value]) => `${json(name)}: ${literal(value)}`).join(", ")}}`;

/** The first lines of a program in Python. */
function imports(line, keys) {
  return [...(keys ? ["import os", ""] : []), line, ""];
}

const keyOf = (keys) => (keys ? 'os.environ["NTL_API_KEY"]' : '"-"');

/** The method of OpenAI's client for a path, and the lines that print the answer. */
const METHODS = {
  [COMPLETIONS]: { method: "completions", prints: ['print(answer.choices[0].text, answer.choices[0].number["mass"])'] },
  [CHAT]: { method: "chat.completions", prints: ['print(answer.choices[0].message.content, answer.choices[0].number["mass"])'] },
  [DECISIONS]: { method: "decisions", prints: ["for decision in answer.answers:", "    print(decision.to_json())"] },
};

export function python(state, model, keys) {
  const { path, body } = codeRequest(state, model);
  const { method, prints } = METHODS[path];
  const fields = Object.entries(body);
  const isExtra = ([name]) => EXTRA_FIELDS.includes(name);
  const extra = Object.fromEntries(fields.filter(isExtra));
  if (path !== DECISIONS && !Object.keys(extra.number).length) extra.number = true;
  const lines = fields.filter((field) => !isExtra(field)).map(([name, value]) => `    ${name}=${argument(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  return [
    ...imports("from openai import OpenAI", keys),
    `client = OpenAI(base_url=${json(String(new URL("v1", document.baseURI)))}, api_key=${keyOf(keys)})`,
    `answer = client.${method}.create(`,
    ...lines,
    ")",
    ...prints,
    "",
  ].join("\n");
}

/** A value of an argument: a list of objects has a line for each. */
function argument(value) {
  const isList = Array.isArray(value) && value.every((entry) => entry !== null && typeof entry === "object");
  return isList ? `[\n${value.map((entry) => `        ${literal(entry)},\n`).join("")}    ]` : literal(value);
}

/** The classes of typesafe-sdk by type of question. It has none for numbers, and leaves out their answers. */
const CLASSES = { predicate: "Noul", choice: "Choice", score: "Score" };

function criteriaOf(question) {
  const entries = optionsOf(question);
  // Not an object, which would sort options that are numbers.
  if (question.type === "choice") return dictionary(entries.map(({ text, description }) => [text, description ?? null]));
  return literal(entries.map(({ text, description }) => (description ? text + DESCRIBED + description : text)));
}

/** A question in the Python of typesafe-sdk. */
function typed(question) {
  const { type, instructions } = question;
  if (type === "number") return literal({ type, instructions, criteria: limitsOf(question) });
  const criteria = type === "predicate" ? "" : `, criteria=${criteriaOf(question)}`;
  return `${CLASSES[type]}(instructions=${json(instructions)}${criteria})`;
}

/** The questions by name, with other names in place of missing and repeated ones. */
function named(questions) {
  const found = new Map();
  for (const [index, question] of questions.entries()) {
    const { name } = question;
    found.set(name && !found.has(name) ? name : `question ${index + 1}`, question);
  }
  return [...found];
}

/** The decisions with the client of TypeSafe. */
export function typesafe(state, model, keys) {
  const { questions } = state;
  const hasNumbers = questions.some(({ type }) => type === "number");
  const classes = new Set(questions.map(({ type }) => CLASSES[type]).filter((name) => name));
  const extra = decisionOptions(state);
  return [
    ...imports(`from typesafe_sdk import ${[...classes, "TypeSafeClient"].sort().join(", ")}`, keys),
    `client = TypeSafeClient(base_url=${json(String(new URL(".", document.baseURI)))}, api_key=${keyOf(keys)}, model=${json(model.id)})`,
    "response = client.system_one(",
    `    ${json(state.about)},`,
    "    {",
    ...named(questions).map(([name, question]) => `        ${json(name)}: ${typed(question)},`),
    "    },",
    ...(Object.keys(extra).length ? [`    extra_body=${literal(extra)},`] : []),
    ")",
    ...(hasNumbers ? ["# `response.answers` has no numbers, which only this server answers."] : []),
    `for name, answer in ${hasNumbers ? 'response.raw_http_response.json()["answers"]' : "response.answers"}.items():`,
    "    print(name, answer)",
    "",
  ].join("\n");
}
