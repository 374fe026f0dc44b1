// The state of the page as its link holds it, and the history of earlier requests.

import { OBJECTIVES } from "./estimates.js";

const HISTORY = "ntl-server-history";
const HISTORY_MAX = 30;

/** Types of questions in the view Decide. */
const QUESTION_TYPES = ["predicate", "choice", "score", "number"];

/** A question as its form holds it: options are lines, and numbers are texts. */
export const BLANK = { type: "choice", name: "", instructions: "", options: "", minimum: "", maximum: "", step: "", unit: "" };

/** Maximum number of questions that the server accepts in a request. */
const QUESTIONS_MAX = 400;

export const DEFAULTS = {
  view: "ask",
  model: "",
  versus: "",
  prompt: "",
  objective: "mean",
  chat: true,
  after: "",
  low: null,
  high: null,
  method: "tree",
  tokens: 64,
  rubric: "Grade an answer with a score from {low} to {high}. {low} means that the answer is wrong or useless, {high} that it is correct, complete and clear.",
  task: "What is 12 + 30?",
  answer: "It is 42.",
  scaleLow: 1,
  scaleHigh: 5,
  scaleStep: 1,
  prefill: "",
  about: "How many stars: great food, awful service?",
  questions: [
    { ...BLANK, type: "number", name: "stars", instructions: "How many stars?", minimum: "1", maximum: "5", step: "1" },
    { ...BLANK, type: "score", name: "rating", instructions: "How many stars?", options: "none\none star\ntwo stars\nthree stars\nfour stars\nfive stars" },
  ],
  read: "labels",
  orders: 1,
  coverage: "0.8",
};

const NUMBERS = ["low", "high", "tokens", "scaleLow", "scaleHigh", "scaleStep", "orders"];

const CHOICES = {
  view: ["ask", "judge", "decide"],
  chat: ["true", "false"],
  method: ["tree", "sample", "beam"],
  objective: OBJECTIVES,
  read: ["labels", "texts"],
  coverage: ["none", "0.5", "0.8", "0.9", "0.95"],
};

/** The fragment of a link: it stays in the browser, and servers do not log it. */
export function toFragment(state) {
  const fields = Object.entries(DEFAULTS).map(([name, value]) => [name, textOf(name, state[name]), textOf(name, value)]);
  const changed = fields.filter(([name, text, standard]) => text !== standard && state[name] !== null);
  return new URLSearchParams(changed.map(([name, text]) => [name, text])).toString();
}

const textOf = (name, value) => (name === "questions" ? JSON.stringify(value.map(withoutBlanks)) : String(value));

const withoutBlanks = (question) => Object.fromEntries(Object.entries(question).filter(([, text]) => text !== ""));

/** Reads the questions of a link. Returns undefined if they are unusable. */
function questionsFrom(text) {
  let entries;
  try {
    entries = JSON.parse(text);
  } catch {
    return undefined;
  }
  const isText = (field) => typeof field === "string";
  const isQuestion = (entry) => QUESTION_TYPES.includes(entry?.type) && Object.values(entry).every(isText);
  if (!Array.isArray(entries) || entries.length > QUESTIONS_MAX || !entries.every(isQuestion)) return undefined;
  return entries.map((entry) => Object.fromEntries(Object.keys(BLANK).map((name) => [name, entry[name] ?? ""])));
}

/** Reads the value of a field in a link. Returns undefined if it is unusable. */
function valueFrom(name, text) {
  if (name === "questions") return questionsFrom(text);
  if (NUMBERS.includes(name)) return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (CHOICES[name] && !CHOICES[name].includes(text)) return undefined;
  return name === "chat" ? text === "true" : text;
}

function expected(name) {
  if (name === "questions") return "a list of questions";
  return NUMBERS.includes(name) ? "a number" : `one of ${CHOICES[name].join(", ")}`;
}

/**
 * Reads a link: {state, problems}. Unknown names are left out. An unusable value is replaced by the default, and a problem
 * names it.
 */
export function fromFragment(fragment) {
  const state = { ...DEFAULTS };
  const problems = [];
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!(name in DEFAULTS)) continue;
    const value = valueFrom(name, text);
    if (value === undefined) {
      const instead = name === "questions" ? "its examples" : DEFAULTS[name] ?? "no limit";
      problems.push(`The link sets ${name} to “${text}”, which is not ${expected(name)}. The page uses ${instead} instead.`);
    } else {
      state[name] = value;
    }
  }
  return { state, problems };
}

/** The earlier requests, latest first: [{fragment, label, values}]. */
export function history() {
  try {
    const entries = JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
    return Array.isArray(entries) ? entries.filter((entry) => typeof entry?.fragment === "string") : [];
  } catch {
    return [];
  }
}

export function remember(entry) {
  store([entry, ...history().filter(({ fragment }) => fragment !== entry.fragment)].slice(0, HISTORY_MAX));
}

export const forget = () => store([]);

function store(entries) {
  try {
    localStorage.setItem(HISTORY, JSON.stringify(entries));
  } catch {
    // A browser that stores nothing has no history.
  }
}
