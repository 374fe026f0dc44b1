// The request of a state as code.

import { isInvisible } from "./dom.js";
import { CHAT, codeRequest } from "./requests.js";

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
const EXTRA_FIELDS = ["continue_final_message", "add_generation_prompt", "number"];

// JSON is valid Python except for three words.
const WORDS = { true: "True", false: "False", null: "None" };

function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, field]) => `${json(name)}: ${literal(field)}`).join(", ")}}`;
  }
  return WORDS[value] && typeof value !== "string" ? WORDS[value] : json(value);
}

export function python(state, model, keys) {
  const { path, body } = codeRequest(state, model);
  const fields = Object.entries(body);
  const isExtra = ([name]) => EXTRA_FIELDS.includes(name);
  const method = path === CHAT ? "chat.completions" : "completions";
  const text = path === CHAT ? "message.content" : "text";
  const lines = fields.filter((field) => !isExtra(field)).map(([name, value]) => `    ${name}=${literal(value)},`);
  const extra = Object.fromEntries(fields.filter(isExtra));
  if (!Object.keys(extra.number).length) extra.number = true;
  return [
    ...(keys ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${json(String(new URL("v1", document.baseURI)))}, api_key=${keys ? 'os.environ["NTL_API_KEY"]' : '"-"'})`,
    `answer = client.${method}.create(`,
    ...lines,
    `    extra_body=${literal(extra)},`,
    ")",
    `print(answer.choices[0].${text}, answer.choices[0].number["mass"])`,
    "",
  ].join("\n");
}
