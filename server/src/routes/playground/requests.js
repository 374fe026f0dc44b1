// The requests that a state of the page stands for.

import { QUANTILES, objectiveOf } from "./estimates.js";

/** Example questions by kind of model, if the checkpoint has none (`examples` in its ntl.json). */
const EXAMPLES = [
  {
    kinds: /^regresslm/,
    prompts: ["KBSS\nfor (int i = 0; i < n; i++) sum += a[i];", "APPS\nprint(sum(map(int, input().split())))",
      "# CDSS\n# Language: Python\nprint([x * x for x in range(1000)])"],
  },
  {
    // Heads of rewards, ratings and classes. The regression head of the paper answers arithmetic problems.
    kinds: /^(?!t5-regression).*-head$/,
    prompts: ["I would buy it again.", "It broke on the first day.", "It works, but the manual is useless."],
    chat: ["How many days are in a leap year?", "Explain in one sentence why the sky is blue."],
  },
  { kinds: /^t5/, prompts: ["What is 336 - -20?", "What is 77 - 1533?", "Calculate 12 + 30.", "What is -17 + 4?"] },
  {
    kinds: /./,
    prompts: ["Q: What is 12 + 30? A:", "Q: How many days are in a leap year? A:", "The boiling point of water in degrees Celsius is"],
    chat: ["What is 12 + 30? Answer with a number.", "How many days are in a leap year? Answer with a number.",
      "How tall is Mont Blanc in metres? Answer with a number."],
  },
];

export function examplesOf(model, chat) {
  if (model.examples?.length) return model.examples;
  const found = EXAMPLES.find(({ kinds }) => kinds.test(model.kind));
  return (chat && found.chat) || found.prompts;
}

export const COMPLETIONS = "v1/completions";
export const CHAT = "v1/chat/completions";
export const DECISIONS = "v1/decisions";

const hasPrefill = ({ prefill }) => prefill.trim() !== "";

/** The prompt of the judge, worded as by `ntl-eval judge`. The rubric may contain {low}, {high} and {step} of the scale. */
function judgePrompt(state) {
  const { rubric, task, answer, scaleLow, scaleHigh, scaleStep, after } = state;
  const graded = rubric.replaceAll("{low}", scaleLow).replaceAll("{high}", scaleHigh).replaceAll("{step}", scaleStep);
  const end = after.trim()
    ? `Explain your judgement in a few sentences. Then write "${after.trim()}" and the score.`
    : `Write only the score.${hasPrefill(state) ? "" : "\nScore:"}`;
  return `${graded}\n\n[Question]\n${task}\n\n[Answer]\n${answer}\n\n${end}`;
}

/** The prompt of the judge with the beginning of its answer. */
export const judgeText = (state) => `${judgePrompt(state)}${hasPrefill(state) ? `\n${state.prefill}` : ""}`;

/** The text that a request is about. */
export function promptOf(state) {
  if (state.view === "decide") return state.about;
  return state.view === "judge" ? judgePrompt(state) : state.prompt;
}

/** A bound above the largest numbers that the server reads. */
const UNLIMITED = 1e12;

/** The conversation of a chat, whose last message is the beginning of the judge's answer, if there is one. */
function conversation(state) {
  const messages = [{ role: "user", content: promptOf(state) }];
  if (state.view !== "judge" || !hasPrefill(state)) return { messages };
  messages.push({ role: "assistant", content: state.prefill });
  return { messages, continue_final_message: true, add_generation_prompt: false };
}

const isHead = (model) => model.kind.endsWith("-head");

/** Whether a model predicts several labels and no number. */
export const isClassifier = (model) => model.labels?.length > 1;

/** The probabilities of all labels. */
export function labelsRequest(state, model) {
  const { chat, body: { prompt, ...rest } } = base(state, model);
  return { path: "classify", body: chat ? rest : { ...rest, input: prompt } };
}

/** The path and the body that all requests of a state share. */
function base(state, model) {
  const chat = state.chat && model.chat;
  const prompt = state.view === "judge" ? judgeText(state) : state.prompt;
  const body = chat ? conversation(state) : { prompt };
  return { path: chat ? CHAT : COMPLETIONS, chat, body: { model: model.id, ...body } };
}

/** Greedy text with its tokens. */
export function textRequest(state, model) {
  const { path, chat, body } = base(state, model);
  const logprobs = chat ? { logprobs: true, top_logprobs: 8 } : { logprobs: 8 };
  const text = { ...body, temperature: 0, max_tokens: state.tokens, ...logprobs, number_tokens: true };
  // A head writes no tokens.
  if (isHead(model)) return { path, body: { ...body, temperature: 0 } };
  return { path, body: text };
}

function options(state) {
  const number = {};
  if (state.method !== "tree") number.method = state.method;
  if (state.after) number.after = state.after;
  if (state.view === "judge") {
    const step = state.scaleStep === 1 ? [] : [state.scaleStep];
    return { ...number, scale: [state.scaleLow, state.scaleHigh, ...step] };
  }
  if (state.low !== null || state.high !== null) number.range = [state.low ?? -UNLIMITED, state.high ?? UNLIMITED];
  return number;
}

/** Positions of the searches that the page shows while the server searches further. */
const BUDGETS = [16, 80];

/** Requests for the number with all values that the page shows, each with a larger search. The last one has the server's limits. */
export function numberRequests(state, model) {
  const { path, body } = base(state, model);
  const number = { ...options(state), quantiles: QUANTILES, support: 200 };
  const text = state.after ? { temperature: 0, max_tokens: state.tokens } : {};
  const requestOf = (limits) => ({ path, body: { ...body, ...text, number: { ...number, ...limits } } });
  const isSearch = state.method === "tree" && !state.after && !isHead(model) && model.alternatives !== "none";
  const parts = isSearch ? BUDGETS.map((nodes_max) => requestOf({ nodes_max, sampling: false })) : [];
  return [...parts, requestOf({})];
}

/** Separates an option from its description, in a line of the form and in the prompt. */
export const DESCRIBED = " - ";

/** The options of a question, one per line: [{text, description}]. */
export function optionsOf({ options: lines }) {
  const filled = lines.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  return filled.map((line) => {
    const [text, ...rest] = line.split(DESCRIBED);
    return rest.length ? { text, description: rest.join(DESCRIBED) } : { text };
  });
}

/** The limits of a number and its unit. */
export function limitsOf(question) {
  const limits = ["minimum", "maximum", "step"].filter((name) => question[name] !== "");
  return { ...Object.fromEntries(limits.map((name) => [name, Number(question[name])])), ...(question.unit && { unit: question.unit }) };
}

/** The fields of a question in a request for decisions. */
function questionOf(question) {
  const { type, name, instructions } = question;
  const body = { type, ...(name && { name }), instructions };
  const entries = optionsOf(question);
  if (type === "choice") return { ...body, choices: entries.map(({ text, ...rest }) => ({ value: text, ...rest })) };
  if (type === "score") return { ...body, levels: entries.map(({ text, ...rest }) => ({ label: text, ...rest })) };
  return type === "number" ? { ...body, ...limitsOf(question) } : body;
}

/** The fields of a request for decisions that only this server has. */
export function decisionOptions({ read, orders, coverage }) {
  const found = {};
  if (read !== "labels") found.x_read = read;
  if (orders !== 1) found.x_orders = orders;
  if (coverage !== "none") found.x_coverage = Number(coverage);
  return found;
}

/** The questions of the view Decide. */
export function decisionsRequest(state, model) {
  const body = { model: model.id, input: state.about, questions: state.questions.map(questionOf), ...decisionOptions(state) };
  return { path: DECISIONS, body };
}

/** The request that a program would send: for the chosen objective, or for decisions. */
export function codeRequest(state, model) {
  if (state.view === "decide") return decisionsRequest(state, model);
  const { path, body } = base(state, model);
  const number = options(state);
  if (state.view !== "judge" && state.objective !== "mean") number.objective = objectiveOf(state.objective);
  const text = state.after ? { temperature: 0, max_tokens: state.tokens } : {};
  return { path, body: { ...body, ...text, number } };
}
