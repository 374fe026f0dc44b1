// What the page asks, as it stands in its link; and what was asked before.

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
  rubric: "You judge answers. Give 1 if the answer is wrong and 5 if it is right and complete. Reply with the score only.",
  task: "What is 12 + 30?",
  answer: "It is 42.",
  scaleLow: 1,
  scaleHigh: 5,
};

const NUMBERS = ["low", "high", "tokens", "scaleLow", "scaleHigh"];

/** The fragment of a link: it stays in the browser, and servers do not log it. */
export function toFragment(state) {
  const fields = Object.entries(DEFAULTS).filter(([name, value]) => state[name] !== value && state[name] !== null);
  return new URLSearchParams(fields.map(([name]) => [name, String(state[name])])).toString();
}

/** A state that a link describes. Unknown names are left out, and numbers that are none. */
export function fromFragment(fragment) {
  const state = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!(name in DEFAULTS)) continue;
    if (name === "chat") state.chat = text !== "false";
    else if (!NUMBERS.includes(name)) state[name] = text;
    else if (text !== "" && Number.isFinite(Number(text))) state[name] = Number(text);
  }
  if (state.view !== "judge") state.view = "ask";
  return state;
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
