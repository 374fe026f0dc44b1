// One model's answers to the questions of the view Decide: a bar for each allowed answer.

import { ask } from "./api.js";
import { axisOf, axisOfScale, distribution, legend, masses, ranked } from "./chart.js";
import { between, brief, counted, h, percent, plain } from "./dom.js";
import { failureBox, guarantee, headingOf, isFatal, milliseconds } from "./panel.js";
import { decisionsRequest } from "./requests.js";

/** Probabilities that differ by less are shown with one bound of the difference. */
const CLOSE = 1e-5;

const METHODS = {
  conformal: "calibrated on examples",
  probabilities: "according to the model’s probabilities",
  quantiles: "according to the model’s probabilities",
};

export class DecisionPanel {
  constructor(state, model, { named }) {
    Object.assign(this, { state, model, answers: [], failure: undefined });
    this.list = h("div", { class: "decisions" }, h("p", { class: "waiting" }, "…"));
    this.node = h("article", { class: "panel card", "aria-busy": "true", "data-model": model.id }, named ? headingOf(model) : null, this.list);
  }

  /** Requests the answers. Throws the errors that end the whole request. */
  async run(signal) {
    const { path, body } = decisionsRequest(this.state, this.model);
    const began = performance.now();
    try {
      const { answers, usage } = await ask(path, body, signal);
      this.answers = answers;
      this.show(`${counted(usage.input_tokens, "token")} read, ${milliseconds(began)}`);
    } catch (error) {
      this.failure = error;
      this.list.replaceChildren(failureBox(error));
      if (isFatal(error)) throw error;
    } finally {
      this.node.setAttribute("aria-busy", "false");
    }
  }

  /** The answers in a few words. */
  get said() {
    return this.answers.map(inBrief).join(", ") || "no answer";
  }

  show(note) {
    const shown = this.answers.map((answer, index) => section(answer, this.state.questions[index], index));
    this.list.replaceChildren(...shown.map(({ node }) => node));
    this.list.after(h("p", { class: "note" }, note));
    for (const { draw } of shown) draw?.();
  }
}

function inBrief(answer) {
  if (answer.type === "predicate") return `yes ${percent(answer.probability)}`;
  if (answer.type === "choice") return String(answer.choice);
  if (answer.type === "refusal") return "no answer";
  return brief(answer[answer.type]);
}

/** The section of one answer: {node, draw}. `draw` is for after the node is on the page. */
function section(answer, question, index) {
  const { value, caption, parts, draw } = SHOWN[answer.type](answer, question);
  const remarks = [answer.x_note, answer.distribution?.reason].filter((remark) => remark);
  const title = question.instructions || `Question ${index + 1}`;
  const node = h("section", { class: "decision", "aria-label": question.name || title },
    h("h3", { class: "asked" }, h("bdi", {}, plain(title))),
    value ? h("p", { class: "value" }, value) : null,
    h("p", { class: "caption" }, caption),
    remarks.map((remark) => h("p", { class: "notice warning", role: "note" }, plain(remark))),
    parts,
    h("h4", {}, "Probability"), masses(answer.x_mass, answer.type === "number" ? "numbers" : "allowed answers"));
  return { node, draw };
}

const SHOWN = { predicate, choice, score, number, refusal };

function predicate({ probability, x_bounds: { probability: [low, high] }, x_set: set }) {
  const rows = [
    { label: "Yes", probability, bounds: [low, high] },
    { label: "No", probability: 1 - probability, bounds: [1 - high, 1 - low] },
  ];
  return { value: percent(probability), caption: "the probability of yes", parts: [...bars(rows), coverage(set, (isTrue) => (isTrue ? "yes" : "no"))] };
}

function choice({ choice: chosen, probabilities, confidence, x_bounds: bounds, x_set: set }) {
  const rows = probabilities.map(({ value, probability }, index) => ({
    label: plain(String(value)), probability, chosen: value === chosen, bounds: bounds.probabilities[index].probability,
  }));
  rows.sort((one, other) => other.probability - one.probability);
  return { value: plain(String(chosen)), caption: `confidence ${brief(confidence, 3)}`, parts: [...bars(rows), coverage(set)] };
}

function score({ score: value, probabilities, confidence, x_bounds: bounds, x_interval: interval }) {
  const rows = probabilities.map(({ value: index, label, probability }) => ({
    label: [`${index} `, ...plain(label)], probability, bounds: bounds.probabilities[index].probability,
  }));
  const caption = [`the expected level, from 0 to ${rows.length - 1}`, ` · confidence ${brief(confidence, 3)}`, h("br"), guarantee(bounds.score)];
  return { value: brief(value), caption, parts: [...bars(rows), coverage(interval)] };
}

function number({ number: value, unit, distribution: found, x_interval: interval }, { minimum, maximum, step }) {
  const isGrid = [minimum, maximum, step].every((text) => text !== "");
  const axis = isGrid ? axisOfScale(Number(minimum), Number(maximum), Number(step)) : axisOf([found]);
  const picture = axis && distribution(found, axis, "Distribution of the number");
  picture?.pin(value);
  const rows = found.support.map(({ text, probability }) => ({ label: text.replace("-", "−"), probability }));
  const quantiles = found.quantiles.map(({ q, value: at }) => h("li", {}, `${brief(100 * q)}% quantile `, h("b", {}, brief(at))));
  return {
    value: value === null ? "no value" : [brief(value), ...(unit ? [" ", ...plain(unit)] : [])],
    caption: [found.estimate?.replace("_", " ") ?? "no estimate", h("br"), value === null ? "" : guarantee(found.bounds.value)],
    parts: [
      ...(picture ? [picture.node, legend(found, axis.domain)] : []),
      h("ul", { class: "legend", "aria-label": "Quantiles" }, quantiles),
      coverage(interval),
      ...(rows.length ? [h("h4", {}, "Most probable values"), ...ranked(rows, { title: "Most probable values" })] : []),
    ],
    draw: picture?.draw,
  };
}

function refusal() {
  return { value: null, caption: "The model writes none of the allowed answers.", parts: [] };
}

/** The bars of all options, each with its probability and the bounds of the probability. */
function bars(rows) {
  const noted = rows.map(({ bounds, ...row }) => ({ ...row, note: boundsOf(bounds) }));
  return ranked(noted, { title: "Probabilities of the answers", most: 10, relative: false });
}

function boundsOf([low, high]) {
  if (low === high) return "exactly";
  if (high - low < CLOSE) return `± < ${100 * CLOSE}%`;
  return `${between(100 * low, 100 * high, " … ")}%`;
}

/** The set or the interval that contains the correct answer with the requested probability. */
function coverage(found, nameOf = String) {
  if (!found) return null;
  const { low, high, values, coverage: share, method, reason } = found;
  const [kind, text] = values ? ["set", values.map(nameOf).join(", ")] : ["interval", between(low, high, " … ")];
  return h("p", { class: "coverage" }, `${brief(100 * share)}% ${kind}: `, h("b", {}, plain(text)),
    h("span", { class: "muted" }, ` ${METHODS[method]}${reason ? ` (${reason})` : ""}`));
}
