// One model's answer: greedy text on one side, the distribution on the other.

import { ApiError, ask, stream } from "./api.js";
import { axisOf, axisOfScale, distribution, legend, masses, ranked } from "./chart.js";
import { between, brief, counted, cut, errorBox, h, percent, plain } from "./dom.js";
import { OBJECTIVES, estimate, labelOf, meaning, title } from "./estimates.js";
import { isClassifier, labelsRequest, numberRequests, textRequest } from "./requests.js";
import { HeatMap, tokensOf } from "./tokens.js";

let panels = 0;

/** The box for one failure. */
export function problem(error) {
  const details = [
    error.status ? `status ${error.status}` : null,
    error.param ? `field ${error.param}` : null,
    error.retry ? `try again in ${error.retry} s` : null,
    error.id ? `request ${error.id}` : null,
  ].filter((part) => part !== null);
  return errorBox([error.message], details);
}

/** Whether two failures would read the same. */
export const isSame = (one, other) => one.message === other.message && one.status === other.status && one.param === other.param;

const isCancelled = (error) => error.name === "AbortError";

/** Whether a failure ends the requests to all models. */
export const isFatal = (error) => isCancelled(error) || error.status === 401;

/** The box that a panel shows in place of an answer. */
export const failureBox = (error) => (isCancelled(error) ? h("p", { class: "notice" }, "Cancelled.") : problem(error));

/** The heading of a panel, if there are several. */
export const headingOf = (model) => h("h2", { class: "model" }, h("bdi", {}, plain(model.id)), " ", h("span", { class: "muted" }, model.kind));

/** The bounds of an estimate in words. */
export function guarantee(bounds) {
  if (!bounds) return "no bounds";
  const [low, high] = bounds;
  if (low === high) return "certain, wherever the unexplored probability lies";
  return `guaranteed between ${between(low, high, " and ")}, wherever the unexplored probability lies`;
}

export const milliseconds = (began) => `${Math.round(performance.now() - began)} ms`;

export class Panel {
  /** `onSlide` gets the objective that the user slides to. */
  constructor(state, model, { named, onSlide }) {
    panels += 1;
    Object.assign(this, { state, model, onSlide, number: null, numbers: [], label: null, picture: null, written: "", reasoning: "", failures: [] });
    this.id = `panel-${panels}`;
    this.text = h("div", { class: "text answer-text", tabindex: 0 }, h("span", { class: "waiting" }, "…"));
    this.textNote = h("p", { class: "note" });
    this.heat = new HeatMap();
    this.side = h("div", { class: "side" }, h("p", { class: "waiting" }, "…"));
    this.columns = h("div", { class: "columns" },
      h("section", { class: "greedy", "aria-label": "Greedy text" }, h("h3", {}, "Greedy text"), this.text, this.textNote),
      h("section", { class: "numbers", "aria-label": "Distribution of the number" }, h("h3", {}, state.view === "judge" ? "Score" : "Distribution"), this.side),
      this.heat.node);
    this.node = h("article", { class: "panel card", "aria-busy": "true", "data-model": model.id }, named ? headingOf(model) : null, this.columns);
  }

  /** Requests the text and the number, or the labels. Throws the errors that end the whole request. */
  async run(signal) {
    const asked = isClassifier(this.model) ? [this.askLabels(signal)] : [this.askText(signal), this.askNumber(signal)];
    const results = await Promise.allSettled(asked);
    this.node.setAttribute("aria-busy", "false");
    this.failures = results.flatMap(({ status, reason }) => (status === "rejected" ? [reason] : []));
    this.fail(results.map(({ reason }) => reason));
    const fatal = this.failures.find(isFatal);
    if (fatal) throw fatal;
  }

  /** The failure of a panel that shows nothing else, or undefined. */
  get failure() {
    const [text, number] = this.failures;
    return number && isSame(text, number) && !this.written && !this.reasoning ? text : undefined;
  }

  /** The answer in a few words. */
  get said() {
    return this.number ? brief(estimate(this.number, this.state.objective).value) : this.label ?? "no number";
  }

  async askText(signal) {
    const { path, body } = textRequest(this.state, this.model);
    const began = performance.now();
    let end = null;
    await stream(path, body, signal, ({ choices: [choice] }) => {
      if (!choice) return;
      this.written += choice.text ?? choice.delta?.content ?? "";
      end = choice.finish_reason ?? end;
      this.text.replaceChildren(...cut(this.written));
      this.heat.add(tokensOf(choice));
    });
    if (!this.written) this.text.replaceChildren(h("span", { class: "muted" }, "(empty)"));
    this.heat.selectDoubtful();
    this.textNote.replaceChildren(...this.aboutText(end, began));
  }

  async askLabels(signal) {
    const { path, body } = labelsRequest(this.state, this.model);
    const { data: [{ label, probs }] } = await ask(path, body, signal);
    this.label = label;
    this.text.replaceChildren(...cut(label));
    const rows = this.model.labels.map((name, index) => ({ label: plain(name), probability: probs[index], chosen: name === label }));
    rows.sort((one, other) => other.probability - one.probability);
    this.side.replaceChildren(...ranked(rows, { title: "Probabilities of the labels", relative: false }));
  }

  aboutText(end, began) {
    const tokens = this.heat.tokens;
    const took = `${tokens.length ? `${counted(tokens.length, "token")}, ` : ""}${milliseconds(began)}`;
    if (!tokens.length) return [took];
    if (end !== "stop") return [`Cut off after ${took}.`];
    const probability = Math.exp(tokens.reduce((sum, { logprob }) => sum + logprob, 0));
    return ["The model writes exactly this with ", h("b", {}, percent(probability)), ` (${took}).`];
  }

  /** Shows the number of each search until one has ended by itself. A search that is stopped keeps what is shown. */
  async askNumber(signal) {
    const began = performance.now();
    const left = numberRequests(this.state, this.model);
    try {
      do {
        const choice = await this.numberChoice(left.shift(), signal);
        if (!choice?.number) throw new ApiError("The response has no number.");
        this.numbers = this.model.outputs > 1 ? choice.numbers.map(({ number }) => number) : [choice.number];
        [this.number] = this.numbers;
        this.took = milliseconds(began);
        this.isSearching = choice.number.truncated && left.length > 0;
        this.show();
      } while (this.isSearching);
    } catch (error) {
      if (!isCancelled(error) || !this.number) throw error;
      this.isSearching = false;
      this.show();
    }
  }

  /** The choice with the number. Text before the number is shown as it arrives. */
  async numberChoice({ path, body }, signal) {
    if (!this.state.after) return (await ask(path, body, signal)).choices[0];
    let choice;
    await stream(path, body, signal, ({ choices: [piece] }) => {
      if (!piece) return;
      if (piece.number) choice = piece;
      else this.reasoning += piece.text ?? piece.delta?.content ?? "";
      this.side.replaceChildren(h("div", { class: "text reasoning", tabindex: 0 }, cut(this.reasoning)));
    });
    return choice;
  }

  /** Shows the received part and the failures of the text and of the number; only one failure if both read the same. */
  fail([text, number]) {
    const shared = Boolean(text && number && isSame(text, number));
    for (const [node, written, error] of [[this.text, this.written, text], [this.side, this.reasoning, number]]) {
      if (!error) continue;
      node.replaceChildren(...(written ? cut(written) : []), ...(shared ? [] : [failureBox(error)]));
      node.parentNode.hidden = shared && !written;
    }
    if (shared) this.columns.before(failureBox(text));
  }

  /** Draws the number; again when another panel changes the axis. */
  show(shared = null) {
    const { number, state } = this;
    if (!number) return;
    const axis = state.view === "judge" ? axisOfScale(state.scaleLow, state.scaleHigh, state.scaleStep) : shared ?? axisOf([number]);
    const parts = [this.estimates()];
    if (axis) {
      this.picture = distribution(number, axis, `Distribution of ${this.model.id}`);
      parts.push(this.picture.node, legend(number, axis.domain), this.slider());
    }
    parts.push(h("h4", {}, "Probability"), masses(number.mass));
    if (number.support.length) parts.push(h("h4", {}, "Most probable values"), ...this.values());
    const written = this.reasoning ? h("details", {}, h("summary", {}, "Text before the number"), h("div", { class: "text reasoning", tabindex: 0 }, cut(this.reasoning))) : null;
    this.side.replaceChildren(...this.outputs(), ...this.warnings(), ...parts, h("p", { class: "note" },
      `${counted(number.nodes, "decoder position")} in ${counted(number.forward_passes, "pass")}, ${this.took}${this.isSearching ? ". Searching further …" : ""}`), ...(written ? [written] : []));
    this.picture?.draw();
    this.slide(this.state.objective);
    performance.mark("ntl-distribution");
  }

  /** Buttons for the numbers of an answer that has several. */
  outputs() {
    if (this.numbers.length < 2) return [];
    const button = (number, index) => h("button", {
      type: "button", class: "example", "aria-pressed": String(number === this.number), onclick: () => { this.number = number; this.show(); },
    }, `Number ${index + 1}: ${number.value === null ? "no value" : brief(number.value)}`);
    return [h("div", { class: "examples", role: "group", "aria-label": "Numbers of the answer" }, this.numbers.map(button))];
  }

  warnings() {
    const { number } = this;
    if (this.isSearching) return [];
    const said = [];
    if (number.reason) said.push(number.reason);
    if (number.truncated) said.push(`The search ended after ${counted(number.nodes, "position")} with ${percent(number.mass.open)} unexplored.`);
    return said.map((text) => h("p", { class: "notice warning", role: "note" }, plain(text)));
  }

  estimates() {
    this.value = h("output", { class: "value", for: `${this.id}-slider` });
    this.caption = h("p", { class: "caption" });
    return h("div", { class: "estimate" }, this.value, this.caption);
  }

  slider() {
    this.range = h("input", { type: "range", id: `${this.id}-slider`, min: 0, max: OBJECTIVES.length - 1, step: 1, "aria-label": "Objective",
      oninput: () => this.onSlide(OBJECTIVES[Number(this.range.value)]) });
    const labels = OBJECTIVES.map((name, index) => {
      const label = h("button", { type: "button", class: "stop", "data-objective": name, tabindex: -1, onclick: () => this.onSlide(name) },
        labelOf(name));
      label.style.setProperty("--at", String(index / (OBJECTIVES.length - 1)));
      return label;
    });
    return h("div", { class: "slider" }, this.range, h("div", { class: "stops" }, labels));
  }

  /** Shows the value that an objective returns. */
  slide(name) {
    if (!this.number) return;
    const { value, bounds, instead } = estimate(this.number, name);
    const missing = this.isSearching ? "no value yet" : "no value";
    this.value.textContent = value === null ? missing : brief(value);
    this.value.dataset.value = value ?? "";
    const whole = value === null || brief(value) === brief(value, 17) ? null : String(value);
    this.caption.replaceChildren(h("b", {}, title(name)), ` · ${this.meaning(name)}`,
      ...(whole ? [h("br"), "unrounded ", h("code", {}, whole)] : []),
      ...(value === null ? [] : [h("br"), !bounds && instead ? "" : guarantee(bounds)]));
    if (instead) this.caption.append(h("span", { class: "notice warning" }, `Nothing bounds the ${title(name)} here, so the server returns the ${instead}.`));
    this.picture?.pin(value);
    if (this.range) {
      this.range.value = OBJECTIVES.indexOf(name);
      this.range.setAttribute("aria-valuetext", `${title(name)}: ${brief(value)}`);
    }
  }

  meaning(name) {
    const isScore = this.state.view === "judge" && name === "mean";
    return isScore ? "the expected score" : meaning(name);
  }

  values() {
    const rows = this.number.support.map(({ text, probability }) => ({ label: text.replace("-", "−"), probability }));
    return ranked(rows, { title: "Most probable values" });
  }
}
