// The page: reads the form, sends its requests to the chosen models, and shows the answers.

import { ask, hasKey, setKey } from "./api.js";
import { axisOf } from "./chart.js";
import { curl, python, typesafe } from "./code.js";
import { DecisionPanel } from "./decisions.js";
import { byId, copy, errorBox, h, plain } from "./dom.js";
import { Panel, isSame, problem } from "./panel.js";
import { drawQuestions, fieldOf, focusQuestion, numberFields, readQuestions } from "./questions.js";
import { examplesOf, judgeText, promptOf } from "./requests.js";
import { BLANK, forget, fromFragment, history, remember, toFragment } from "./state.js";

/** Models with at most this many parameters answer an example as soon as the page opens. */
const EAGER_PARAMETERS_MAX = 50e6;

/** Fields of the form that hold a text or a number of the state. */
const FIELDS = {
  prompt: "prompt", model: "model", versus: "versus", after: "after", method: "method", rubric: "rubric", task: "task", answer: "answer",
  prefill: "prefill", about: "about", read: "read", coverage: "coverage",
};
const NUMBER_FIELDS = {
  low: { name: "low", optional: true },
  high: { name: "high", optional: true },
  "scale-low": { name: "scaleLow" },
  "scale-high": { name: "scaleHigh" },
  "scale-step": { name: "scaleStep", positive: true },
  tokens: { name: "tokens", integer: true, min: 1 },
  orders: { name: "orders", integer: true, min: 1 },
};

/** The views, and what their buttons say. */
const VERBS = { ask: "Ask", judge: "Judge", decide: "Decide" };

/** Fields whose first value may not exceed the second. */
const ORDERED_FIELDS = [["low", "high"], ["scale-low", "scale-high"]];

let { state, problems } = fromFragment(location.hash);
let models = [];
let keys = false;
let running = null;
let panels = [];

const modelOf = (name) => models.find(({ id }) => id === name);

// ------------------------------------------------------------------------------------------------------------ models

async function load() {
  try {
    ({ data: models } = await ask("v1/models"));
  } catch (error) {
    if (error.status === 401) return askForKey();
    if (error.status === 503) {
      byId("problem").replaceChildren(h("p", { class: "notice", role: "status" }, "The server is loading its models …"));
      setTimeout(load, 1000);
      return;
    }
    byId("problem").replaceChildren(problem(error));
    return;
  }
  keys = hasKey();
  byId("key-form").hidden = true;
  byId("problem").replaceChildren();
  byId("model").replaceChildren(...models.map(({ id, kind }) => h("option", { value: id }, plain(id), ` (${kind})`)));
  byId("versus-field").hidden = models.length < 2;
  checkModels();
  write();
  about();
  start();
}

function askForKey() {
  byId("key-form").hidden = false;
  byId("problem").replaceChildren();
  if (hasKey()) byId("key-note").textContent = "The server does not accept this key.";
  byId("key").focus();
}

/** Adds a problem for each model of the link that the server does not serve. */
function checkModels() {
  for (const name of ["model", "versus"]) {
    if (!state[name] || modelOf(state[name])) continue;
    problems.push(`The link names the model “${state[name]}”, which this server does not serve. It serves ${models.map(({ id }) => `“${id}”`).join(", ")}.`);
    state[name] = "";
  }
}

/** Shows why no request was sent, and moves the focus to the field to change. */
function complain(messages, field) {
  byId("problem").replaceChildren(errorBox(messages));
  focus(field);
}

function focus(field) {
  const details = field.closest("details");
  if (details) details.open = true;
  field.focus();
}

/** Marks the field that an error of the server names, and moves the focus there. */
function mark(error) {
  const field = state.view === "decide" ? fieldOf(error.param) : null;
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "problem");
  focus(field);
}

/** Sends the request that a link describes, unless the link has problems; a small model also answers its first example. */
function start() {
  if (problems.length) return complain(problems, byId("submit"));
  if (promptOf(state) && location.hash.length > 1) return run();
  const model = modelOf(state.model);
  if (state.view !== "ask" || state.prompt || model.parameters > EAGER_PARAMETERS_MAX) return byId("prompt").focus();
  [state.prompt] = examplesOf(model, state.chat && model.chat);
  write();
  return run();
}

async function about() {
  const version = await ask("version").catch(() => null);
  if (version) byId("about").replaceChildren(`ntl-server ${version.version} on ${version.device}`);
}

// -------------------------------------------------------------------------------------------------------------- form

/** Puts the state into the form. */
function write() {
  if (!modelOf(state.model)) state.model = models[0]?.id ?? "";
  if (!modelOf(state.versus) || state.versus === state.model) state.versus = "";
  const others = models.filter(({ id }) => id !== state.model);
  byId("versus").replaceChildren(h("option", { value: "" }, "no other"), ...others.map(({ id }) => h("option", { value: id }, plain(id))));
  for (const [id, name] of Object.entries(FIELDS)) byId(id).value = state[name];
  for (const [id, { name }] of Object.entries(NUMBER_FIELDS)) {
    byId(id).value = state[name] ?? "";
    byId(id).removeAttribute("aria-invalid");
  }
  byId("chat").checked = state.chat;
  for (const view of Object.keys(VERBS)) {
    byId(`view-${view}`).setAttribute("aria-pressed", String(state.view === view));
  }
  for (const part of document.querySelectorAll("[data-view]")) part.hidden = !part.dataset.view.split(" ").includes(state.view);
  byId("chat-field").hidden ||= !modelOf(state.model)?.chat;
  byId("submit").firstChild.textContent = `${VERBS[state.view]} `;
  byId("judge-prompt").replaceChildren(...plain(judgeText(state)));
  drawQuestions(state.questions, removeQuestion);
  examples();
}

/** Reads the form into the state. Returns the mistakes in visible fields: [{id, message}]. */
function read() {
  // The form is empty until the models are known.
  if (!models.length) return [];
  for (const [id, name] of Object.entries(FIELDS)) state[name] = byId(id).value;
  state.chat = byId("chat").checked;
  const mistakes = [];
  const check = (id, mistake) => {
    const wrong = mistake !== null && !byId(id).closest("[hidden]");
    byId(id).setAttribute("aria-invalid", String(wrong));
    if (wrong) mistakes.push({ id, message: `${titleOf(id)} ${mistake}.` });
  };
  for (const [id, field] of Object.entries(NUMBER_FIELDS)) {
    const text = byId(id).value.trim();
    const mistake = mistakeIn(text, field);
    if (mistake === null) state[field.name] = text === "" ? null : Number(text);
    check(id, mistake);
  }
  state.questions = readQuestions(state.questions.length);
  for (const { id, ...field } of numberFields(state.questions.length)) check(id, mistakeIn(byId(id).value.trim(), field));
  for (const [low, high] of ORDERED_FIELDS) {
    const [least, most] = [low, high].map((id) => Number(byId(id).value.trim() || NaN));
    if (least > most) check(high, `is ${most}, which is less than ${titleOf(low)}, ${least}`);
  }
  return mistakes;
}

/** The name of a field in error messages. */
const titleOf = (id) => `“${byId(id).dataset.title ?? byId(id).labels[0].textContent}”`;

/** The mistake in the text of a number field, or null. */
function mistakeIn(text, { optional = false, integer = false, positive = false, min = null }) {
  if (text === "" && optional) return null;
  const expected = `${integer ? "an integer" : "a number"}${min === null ? "" : ` of at least ${min}`}${positive ? " above 0" : ""}`;
  if (text === "") return `is empty; it needs ${expected}`;
  const value = Number(text);
  const usable = Number.isFinite(value) && (!integer || Number.isInteger(value)) && (min === null || value >= min) && (!positive || value > 0);
  if (usable) return null;
  const hint = /^[-+]?\d+,\d+$/.test(text) ? ". Write decimals with a point, as in 1.5" : "";
  return `is “${text}”, which is not ${expected}${hint}`;
}

function examples() {
  const model = modelOf(state.model);
  const prompts = model ? examplesOf(model, state.chat && model.chat) : [];
  byId("examples").replaceChildren(...prompts.map((prompt) => h("button", {
    type: "button", class: "example", onclick: () => { state.prompt = prompt; write(); run(); },
  }, h("bdi", {}, plain(prompt)))));
}

function addQuestion() {
  read();
  state.questions = [...state.questions, BLANK];
  write();
  focusQuestion(state.questions.length - 1);
}

function removeQuestion(index) {
  read();
  state.questions = state.questions.toSpliced(index, 1);
  write();
  focusQuestion(Math.max(0, index - 1));
}

function setView(view) {
  read();
  state.view = view;
  cancel();
  clear();
  write();
  link();
}

// ------------------------------------------------------------------------------------------------------------ answer

/** Puts the state into the address of the page. */
const link = () => window.history.replaceState(null, "", `#${toFragment(state)}`);

function clear() {
  panels = [];
  byId("results").replaceChildren();
  byId("problem").replaceChildren();
  byId("tools").hidden = true;
  for (const field of byId("form").querySelectorAll("[aria-describedby]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

function cancel() {
  running?.abort();
  running = null;
  byId("cancel").disabled = true;
}

const say = (text) => { byId("status").textContent = text; };

async function run() {
  cancel();
  clear();
  const asked = { ...state };
  if (!promptOf(asked).trim()) {
    const [message, field] = asked.view === "decide" ? ["The text is empty.", "about"] : ["The question is empty. Write one, or choose an example.", "prompt"];
    return complain([message], byId(field));
  }
  link();
  const abort = new AbortController();
  running = abort;
  byId("cancel").disabled = false;
  say("Asking");
  const names = [asked.model, asked.versus].filter((name) => name !== "");
  const Kind = asked.view === "decide" ? DecisionPanel : Panel;
  panels = names.map((name) => new Kind(asked, modelOf(name), { named: names.length > 1, onSlide: slide }));
  const own = panels;
  byId("results").dataset.panels = String(own.length);
  byId("results").replaceChildren(...own.map(({ node }) => node));
  byId("tools").hidden = false;
  const results = await Promise.allSettled(own.map((panel) => panel.run(abort.signal)));
  if (panels !== own) return undefined;
  if (own.length > 1) align(own);
  const failed = results.find(({ status }) => status === "rejected")?.reason;
  if (running === abort) cancel();
  if (failed?.status === 401) {
    clear();
    return askForKey();
  }
  const [first, ...others] = own.map(({ failure }) => failure);
  if (!failed && first && others.every((other) => other && isSame(first, other))) {
    clear();
    byId("problem").replaceChildren(problem(first));
    mark(first);
    return say("No answer");
  }
  if (failed) return say("Cancelled");
  const values = own.map(({ said }) => said);
  say(`Answered: ${values.join(", ")}`);
  remember({ fragment: toFragment(asked), label: promptOf(asked).slice(0, 200), values });
  return showHistory();
}

/** Gives the panels of several models the same axis. */
function align(own) {
  const numbers = own.map(({ number }) => number).filter((number) => number);
  const axis = axisOf(numbers);
  if (axis && numbers.length > 1) own.forEach((panel) => panel.show(axis));
}

function slide(objective) {
  state.objective = objective;
  for (const panel of panels) {
    panel.state.objective = objective;
    panel.slide(objective);
  }
  link();
}

// ----------------------------------------------------------------------------------------------------------- history

function showHistory() {
  const entries = history();
  byId("history").hidden = entries.length === 0;
  byId("history-count").textContent = entries.length ? `(${entries.length})` : "";
  byId("history-list").replaceChildren(...entries.map(({ fragment, label, values }) => h("li", {}, h("button", {
    type: "button", class: "past", onclick: () => open(fragment),
  }, h("bdi", { class: "question" }, plain(String(label))), h("span", { class: "muted" }, plain([values].flat().join(", ")))))));
}

/** Opens the state of a link, and sends its request unless the link has problems. */
function open(fragment) {
  ({ state, problems } = fromFragment(fragment));
  checkModels();
  write();
  window.scrollTo({ top: 0 });
  if (!problems.length) return run();
  cancel();
  clear();
  return complain(problems, byId("submit"));
}

// -------------------------------------------------------------------------------------------------------------- code

const LANGUAGES = { curl, python, typesafe };

let language = "curl";

function showCode() {
  if (language === "typesafe" && state.view !== "decide") language = "curl";
  byId("code-text").textContent = LANGUAGES[language](state, modelOf(state.model), keys);
  byId("code-note").textContent = "";
  for (const button of document.querySelectorAll("[data-language]")) {
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
  }
}

async function copied(text, button) {
  const label = button.textContent;
  const done = await copy(text);
  say(done ? "Copied" : "The browser does not let this page copy");
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// ------------------------------------------------------------------------------------------------------------ events

function listen(id, event, action) {
  byId(id).addEventListener(event, action);
}

listen("form", "submit", (event) => {
  event.preventDefault();
  const [first, ...others] = read();
  if (!first) return run();
  cancel();
  clear();
  return complain([first, ...others].map(({ message }) => message), byId(first.id));
});
listen("prompt", "keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
listen("form", "input", () => { read(); byId("judge-prompt").replaceChildren(...plain(judgeText(state))); });
listen("model", "change", () => { read(); write(); });
listen("chat", "change", () => { read(); write(); });
listen("cancel", "click", () => { cancel(); say("Cancelled"); });
listen("view-ask", "click", () => setView("ask"));
listen("view-judge", "click", () => setView("judge"));
listen("view-decide", "click", () => setView("decide"));
listen("add-question", "click", addQuestion);
listen("share", "click", (event) => { link(); copied(location.href, event.currentTarget); });
listen("code", "click", () => { showCode(); byId("code-dialog").showModal(); });
listen("code-close", "click", () => byId("code-dialog").close());
listen("code-copy", "click", (event) => copied(byId("code-text").textContent, event.currentTarget));
listen("history-clear", "click", () => { forget(); showHistory(); });
listen("key-form", "submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key").value = "";
  load();
});
for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => { language = button.dataset.language; showCode(); });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !byId("code-dialog").open) { cancel(); say("Cancelled"); }
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && state.view === "ask") { event.preventDefault(); byId("prompt").focus(); }
});
window.addEventListener("hashchange", () => { if (location.hash.slice(1) !== toFragment(state)) open(location.hash); });

const THEME = "ntl-server-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (theme) => { document.documentElement.dataset.theme = theme; };
try {
  const theme = localStorage.getItem(THEME);
  if (theme) setTheme(theme);
} catch {
  // The page then uses the system's theme.
}
listen("theme", "click", () => {
  const current = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const theme = current === "dark" ? "light" : "dark";
  setTheme(theme);
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // The theme then lasts until the page is closed.
  }
});

showHistory();
load();
