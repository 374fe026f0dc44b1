// One model's answer: greedy text on one side, the distribution on the other.

import { ApiError, ask, stream } from "./api.js";
import { distribution, legend, masses, ranked } from "./chart.js";
import { brief, cut, h, percent, plain } from "./dom.js";
import { OBJECTIVES, domainOf, estimate, labelOf, meaning, title } from "./estimates.js";
import { massMinOf, numberRequest, textRequest } from "./requests.js";
import { HeatMap, tokensOf } from "./tokens.js";

let panels = 0;

/** A failure in words. */
export function problem(error) {
  const details = [
    error.status ? `status ${error.status}` : null,
    error.param ? `field ${error.param}` : null,
    error.retry ? `try again in ${error.retry} s` : null,
    error.id ? `request ${error.id}` : null,
  ].filter((part) => part !== null);
  return h("div", { class: "notice error", role: "alert" }, h("p", {}, plain(error.message)),
    details.length ? h("p", { class: "note" }, plain(details.join(" · "))) : null);
}

const isCancelled = (error) => error.name === "AbortError";

const milliseconds = (began) => `${Math.round(performance.now() - began)} ms`;

export class Panel {
  /** `onSlide` gets the objective that the user slides to. */
  constructor(state, model, { named, onSlide }) {
    panels += 1;
    Object.assign(this, { state, model, onSlide, number: null, picture: null, domain: null });
    this.id = `panel-${panels}`;
    this.text = h("div", { class: "text answer-text", tabindex: 0 }, h("span", { class: "waiting" }, "…"));
    this.textNote = h("p", { class: "note" });
    this.heat = new HeatMap();
    this.side = h("div", { class: "side" }, h("p", { class: "waiting" }, "…"));
    const heading = named ? h("h2", { class: "model" }, h("bdi", {}, plain(model.id)), " ", h("span", { class: "muted" }, model.kind)) : null;
    this.node = h("article", { class: "panel card", "aria-busy": "true", "data-model": model.id }, heading,
      h("div", { class: "columns" },
        h("section", { class: "greedy", "aria-label": "Greedy text" }, h("h3", {}, "Greedy text"), this.text, this.textNote),
        h("section", { class: "numbers", "aria-label": "Distribution of the number" }, h("h3", {}, state.view === "judge" ? "Score" : "Distribution"), this.side),
        this.heat.node));
  }

  /** Asks for both. Resolves to the value of the objective; errors that end the whole request are thrown. */
  async run(signal) {
    const results = await Promise.allSettled([this.askText(signal), this.askNumber(signal)]);
    this.node.setAttribute("aria-busy", "false");
    const failed = results.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
    const fatal = failed.find((error) => isCancelled(error) || error.status === 401);
    if (fatal) throw fatal;
  }

  async askText(signal) {
    const { path, body } = textRequest(this.state, this.model);
    const began = performance.now();
    let text = "";
    let end = null;
    try {
      await stream(path, body, signal, ({ choices: [choice] }) => {
        if (!choice) return;
        text += choice.text ?? choice.delta?.content ?? "";
        end = choice.finish_reason ?? end;
        this.text.replaceChildren(...cut(text));
        this.heat.add(tokensOf(choice));
      });
      if (!text) this.text.replaceChildren(h("span", { class: "muted" }, "(empty)"));
      this.heat.selectDoubtful();
      this.textNote.replaceChildren(...this.aboutText(end, began));
    } catch (error) {
      this.fail(this.text, text, error);
    }
  }

  aboutText(end, began) {
    const tokens = this.heat.tokens;
    const took = `${tokens.length ? `${tokens.length} tokens, ` : ""}${milliseconds(began)}`;
    if (!tokens.length) return [took];
    if (end !== "stop") return [`Cut off after ${took}.`];
    const probability = Math.exp(tokens.reduce((sum, { logprob }) => sum + logprob, 0));
    return ["The model writes exactly this with ", h("b", {}, percent(probability)), ` (${took}).`];
  }

  async askNumber(signal) {
    const { path, body } = numberRequest(this.state, this.model);
    const began = performance.now();
    let text = "";
    try {
      let choice;
      if (this.state.after) {
        await stream(path, body, signal, ({ choices: [piece] }) => {
          if (!piece) return;
          if (piece.number) choice = piece;
          else text += piece.text ?? piece.delta?.content ?? "";
          this.side.replaceChildren(h("div", { class: "text reasoning", tabindex: 0 }, cut(text)));
        });
      } else {
        ({ choices: [choice] } = await ask(path, body, signal));
      }
      if (!choice?.number) throw new ApiError("The answer has no number.");
      this.number = choice.number;
      this.took = milliseconds(began);
      this.reasoning = text;
      this.show();
    } catch (error) {
      this.fail(this.side, text, error);
    }
  }

  /** Shows what had arrived, and the failure. */
  fail(node, text, error) {
    const said = isCancelled(error) ? h("p", { class: "notice" }, "Cancelled.") : problem(error);
    node.replaceChildren(...(text ? cut(text) : []), said);
    throw error;
  }

  /** Draws the number; again when another panel changes the axis. */
  show(domain = null) {
    const { number } = this;
    if (!number) return;
    this.domain = this.state.view === "judge" ? [this.state.scaleLow, this.state.scaleHigh] : domain ?? domainOf(number);
    const parts = [this.estimates()];
    if (this.domain) {
      this.picture = distribution(number, this.domain, `Distribution of ${this.model.id}`);
      parts.push(this.picture.node, legend(number, this.domain), this.slider());
    }
    parts.push(h("h4", {}, "Probability"), masses(number.mass));
    if (number.support.length) parts.push(h("h4", {}, "Most probable values"), ...this.values());
    const written = this.reasoning ? h("details", {}, h("summary", {}, "Text before the number"), h("div", { class: "text reasoning", tabindex: 0 }, cut(this.reasoning))) : null;
    this.side.replaceChildren(...this.warnings(), ...parts, h("p", { class: "note" },
      `${number.nodes} decoder positions in ${number.forward_passes} passes, ${this.took}`), ...(written ? [written] : []));
    this.picture?.draw();
    this.slide(this.state.objective);
    performance.mark("ntl-distribution");
  }

  warnings() {
    const { number } = this;
    const said = [];
    if (number.reason) said.push(number.reason);
    if (number.truncated) said.push(`The search ended after ${number.nodes} positions with ${percent(number.mass.open)} unexplored.`);
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

  /** Shows what an objective returns. */
  slide(name) {
    if (!this.number) return;
    const { value, bounds, instead } = estimate(this.number, name, massMinOf(this.state));
    this.value.textContent = value === null ? "no value" : brief(value);
    this.value.dataset.value = value ?? "";
    const whole = value === null || brief(value) === brief(value, 17) ? null : String(value);
    this.caption.replaceChildren(h("b", {}, title(name)), ` · ${this.meaning(name)}`,
      ...(whole ? [h("br"), "exactly ", h("code", {}, whole)] : []),
      ...(value === null ? [] : [h("br"), this.certainty(bounds, instead)]));
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

  certainty(bounds, instead) {
    if (!bounds) return instead ? "" : "no bounds";
    const [low, high] = bounds;
    if (low === high) return "certain, wherever the unexplored probability lies";
    return `between ${brief(low)} and ${brief(high)}, wherever the unexplored probability lies`;
  }

  values() {
    const rows = this.number.support.map(({ text, probability }) => ({ label: text.replace("-", "−"), probability }));
    return ranked(rows, { title: "Most probable values" });
  }
}
