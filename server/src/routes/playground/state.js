// The state of the page as its link holds it, and the history of earlier requests.

import { OBJECTIVES } from "./estimates.js";

const HISTORY = "ntl-server-history";
const HISTORY_MAX = 30;

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
};

const NUMBERS = ["low", "high", "tokens", "scaleLow", "scaleHigh", "scaleStep"];

const CHOICES = { view: ["ask", "judge"], chat: ["true", "false"], method: ["tree", "sample", "beam"], objective: OBJECTIVES };

/** The fragment of a link: it stays in the browser, and servers do not log it. */
export function toFragment(state) {
  const fields = Object.entries(DEFAULTS).filter(([name, value]) => state[name] !== value && state[name] !== null);
  return new URLSearchParams(fields.map(([name]) => [name, String(state[name])])).toString();
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
    const number = NUMBERS.includes(name);
    const usable = number ? text.trim() !== "" && Number.isFinite(Number(text)) : CHOICES[name]?.includes(text) ?? true;
    if (!usable) {
      const expected = number ? "a number" : `one of ${CHOICES[name].join(", ")}`;
      problems.push(`The link sets ${name} to “${text}”, which is not ${expected}. The page uses ${DEFAULTS[name] ?? "no limit"} instead.`);
    } else if (number) {
      state[name] = Number(text);
    } else {
      state[name] = name === "chat" ? text === "true" : text;
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
