// The tokens of a text as a heat map: how much probability was on number tokens, and what they would have been worth.

import { brief, counted, h, percent, plain } from "./dom.js";
import { ranked } from "./chart.js";

/** Tokens that are drawn before a click shows the others. */
const SHOWN = 200;

/** The tokens of a choice, or of a piece of a stream: [{text, logprob, top, value, mass}]. */
export function tokensOf(choice) {
  const { logprobs } = choice;
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs: top, number_value: value, number_mass: mass }) =>
      ({ text: token, logprob, top: top.map((other) => ({ text: other.token, logprob: other.logprob })), value, mass }));
  }
  return logprobs.tokens.map((text, index) => ({
    text,
    logprob: logprobs.token_logprobs[index],
    top: Object.entries(logprobs.top_logprobs[index]).map(([other, logprob]) => ({ text: other, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
    value: logprobs.number_values[index],
    mass: logprobs.number_mass[index],
  }));
}

/** A token with its spaces and line breaks visible. */
const named = (text) => plain(text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅");

export class HeatMap {
  constructor() {
    this.tokens = [];
    this.row = h("div", { class: "tokens", role: "group", "aria-label": "Tokens: darker where more probability is on numbers" });
    this.row.addEventListener("keydown", (event) => this.move(event));
    this.detail = h("div", { class: "alternatives", "aria-live": "polite" });
    this.more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.showAll() });
    this.node = h("section", { class: "heat", hidden: true, "aria-label": "Tokens" },
      h("h3", {}, "Tokens"),
      h("p", { class: "note" }, "Darker: more probability on number tokens. Below each: their expected value. Click one for its alternatives."),
      this.row, this.more, this.detail);
  }

  add(tokens) {
    this.node.hidden = this.tokens.length + tokens.length === 0;
    for (const token of tokens) {
      this.tokens.push(token);
      if (this.tokens.length <= SHOWN) this.row.append(this.button(this.tokens.length - 1));
    }
    const hidden = this.tokens.length - this.row.childElementCount;
    this.more.hidden = hidden <= 0;
    this.more.textContent = `Show ${counted(hidden, "more token")}`;
  }

  showAll() {
    for (let index = this.row.childElementCount; index < this.tokens.length; index += 1) this.row.append(this.button(index));
    this.more.hidden = true;
  }

  button(index) {
    const { text, logprob, value, mass } = this.tokens[index];
    const expected = (mass ?? 0) >= 0.005 && value !== null ? brief(Number(value.toFixed(2)), 3) : "";
    const label = `token ${JSON.stringify(text)}, probability ${percent(Math.exp(logprob))}, numbers ${percent(mass ?? 0)}`;
    const node = h("button", { type: "button", class: "token", tabindex: index ? -1 : 0, "aria-pressed": "false", "aria-label": label,
      onclick: () => this.select(index) }, h("span", { class: "piece" }, named(text)), h("span", { class: "expected" }, expected || "·"));
    node.style.setProperty("--mass", String(mass ?? 0));
    return node;
  }

  /** Selects the token that the model was least certain of. */
  selectDoubtful() {
    const least = this.tokens.slice(0, SHOWN).reduce((found, { logprob }, index) =>
      (found === null || logprob < this.tokens[found].logprob ? index : found), null);
    if (least !== null) this.select(least);
  }

  select(index) {
    Array.from(this.row.children).forEach((node, other) => {
      node.setAttribute("aria-pressed", String(other === index));
      node.tabIndex = other === index ? 0 : -1;
    });
    const { text, top, value, mass } = this.tokens[index];
    const rows = top.map((other) => ({ label: named(other.text), probability: Math.exp(other.logprob), chosen: other.text === text }));
    const numbers = mass === null || mass === undefined ? "no number token is possible here" :
      `${percent(mass)} on number tokens, worth ${brief(value, 5)} in expectation`;
    this.detail.replaceChildren(h("h4", {}, "Instead of “", h("bdi", { class: "piece" }, named(text)), "”"),
      ...ranked(rows, { title: "Most probable tokens at this place", relative: false }), h("p", { class: "note" }, numbers));
  }

  move(event) {
    const nodes = Array.from(this.row.children);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = nodes.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? nodes.length - 1 : at + (step ?? 0);
    if (at < 0 || next === at || !nodes[next]) return;
    event.preventDefault();
    nodes[next].focus();
    this.select(next);
  }
}
