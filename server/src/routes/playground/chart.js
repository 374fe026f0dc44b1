// Pictures of a distribution. Each has a description in words.

import { between, brief, h, percent, svg } from "./dom.js";
import { domainOf, quantile } from "./estimates.js";

const HEIGHT = 208;
const BASE = 142;
const TOP = 30;
const STRIP = 184;

/** The axis that several numbers share: {domain, values}, or null if none has a domain. The `values` may have a tick each. */
export function axisOf(numbers) {
  const domains = numbers.map(domainOf).filter((domain) => domain !== null);
  if (!domains.length) return null;
  return {
    domain: [Math.min(...domains.map(([low]) => low)), Math.max(...domains.map(([, high]) => high))],
    values: numbers.flatMap(({ support }) => support.map(({ value }) => value)),
  };
}

/** The axis of a rating scale with steps of 1. */
export function axisOfScale(low, high, step) {
  const steps = Math.min(Math.floor((high - low) / step + STEP_TOLERANCE), SCALE_STEPS_MAX);
  const value = (index) => Number((low + index * step).toPrecision(TICK_DIGITS));
  return { domain: [low, high], values: Array.from({ length: Math.max(0, steps) + 1 }, (_, index) => value(index)) };
}

/** Maximum number of steps of a scale that may have a tick each. */
const SCALE_STEPS_MAX = 200;

/** Share of a step by which rounding may shorten a scale. */
const STEP_TOLERANCE = 1e-9;

/** Room on both sides, and around a single value. */
function padded([low, high]) {
  const room = high > low ? (high - low) * 0.06 : Math.max(1, Math.abs(low) * 0.02);
  return [low - room, high + room];
}

/** Significant digits of a tick: enough for neighbours to differ on any axis. */
const TICK_DIGITS = 12;

/** Pixels of a character of a label, and between two labels. */
const CHARACTER_WIDTH = 7.5;
const LABEL_GAP = 8;

/** Labels of an axis: the values themselves if all have room for their labels, otherwise round steps. */
function ticks(values, x, low, high, width) {
  const inside = [...new Set(values)].filter((value) => value >= low && value <= high).sort((a, b) => a - b);
  const half = (value) => (brief(value, TICK_DIGITS).length * CHARACTER_WIDTH + LABEL_GAP) / 2;
  const fits = inside.every((value, index) => index === 0 || x(value) - x(inside[index - 1]) >= half(value) + half(inside[index - 1]));
  return inside.length > 1 && fits ? inside : roundTicks(low, high, width / 90, inside.every(Number.isInteger));
}

/** About `count` round steps; between integers, a step is at least 1. */
function roundTicks(low, high, count, integers) {
  const rough = Math.max((high - low) / Math.max(1, count), integers ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const first = Math.ceil(low / step);
  const found = [];
  for (let index = first; index * step <= high && found.length < 20; index += 1) found.push(index * step);
  return found.map((value) => Number(value.toPrecision(TICK_DIGITS)));
}

/** The picture of one number on an axis. Returns {node, draw, pin}: `pin` moves the mark of the chosen value. */
export function distribution(number, { domain, values }, name) {
  const picture = svg("svg", { class: "distribution", height: HEIGHT, role: "img", "aria-label": inWords(number, name) });
  const node = h("div", { class: "picture" }, picture);
  let value = null;
  let scale = null;
  const pin = svg("g", { class: "pin" },
    svg("line", { y1: TOP - 6, y2: BASE }), svg("circle", { cy: TOP - 6, r: 4 }), svg("text", { y: TOP - 15 }));

  const place = () => {
    pin.toggleAttribute("hidden", value === null || scale === null);
    if (value === null || scale === null) return;
    const { x, width } = scale;
    const at = Math.min(Math.max(x(value), 4), width - 4);
    pin.style.transform = `translateX(${at}px)`;
    const text = pin.querySelector("text");
    text.textContent = brief(value);
    const half = text.textContent.length * 4.4;
    text.setAttribute("text-anchor", at < half ? "start" : at > width - half ? "end" : "middle");
  };

  const draw = () => {
    const width = node.clientWidth;
    if (!width) return;
    const [low, high] = padded(domain);
    const x = (at) => ((at - low) / (high - low)) * (width - 16) + 8;
    scale = { x, width };
    picture.setAttribute("width", width);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.replaceChildren(...band(number, x), ...bars(number, x, low, high), ...axis(values, x, low, high, width), ...strip(number, x), pin);
    place();
  };
  new ResizeObserver(draw).observe(node);
  return { node, draw, pin: (chosen) => { value = chosen; place(); } };
}

function band(number, x) {
  const [low, high] = [quantile(number, 0.05), quantile(number, 0.95)];
  if (low === null || high === null) return [];
  return [svg("rect", { class: "band", x: x(low) - 3, width: x(high) - x(low) + 6, y: TOP, height: BASE - TOP, rx: 3 })];
}

function bars(number, x, low, high) {
  const inside = number.support.filter(({ value }) => value >= low && value <= high);
  const most = Math.max(...inside.map(({ probability }) => probability), 1e-9);
  // The distance between tall bars limits their width; short bars do not.
  const isTall = ({ probability }) => probability >= 0.08 * most;
  const [wide, narrow] = [barWidth(inside.filter(isTall), x), barWidth(inside, x)];
  return inside.map((point) => {
    const { value, text, probability } = point;
    const width = isTall(point) ? wide : narrow;
    const height = Math.max(1.5, (probability / most) * (BASE - TOP - 10));
    return svg("rect", { class: "bar", x: x(value) - width / 2, width, y: BASE - height, height, rx: Math.min(3, width / 3) },
      svg("title", {}, `${text}: ${percent(probability)}`));
  });
}

function barWidth(points, x) {
  const places = points.map(({ value }) => x(value)).sort((a, b) => a - b);
  const gaps = places.slice(1).map((place, index) => place - places[index]).filter((gap) => gap > 0.5);
  return Math.min(20, Math.max(2.5, Math.min(...gaps, 26) * 0.8));
}

function axis(values, x, low, high, width) {
  const marks = ticks(values, x, low, high, width).map((value) => svg("g", { class: "tick" },
    svg("line", { x1: x(value), x2: x(value), y1: BASE, y2: BASE + 4 }),
    svg("text", { x: x(value), y: BASE + 18, "text-anchor": "middle" }, brief(value, TICK_DIGITS))));
  return [svg("line", { class: "axis", x1: 0, x2: width, y1: BASE + 0.5, y2: BASE + 0.5 }), ...marks];
}

/** Below the axis: the 90% interval as a thin line, the middle half as a thick one, and the three estimates. */
function strip(number, x) {
  const at = (level) => quantile(number, level);
  const line = (from, to, name) => from === null || to === null ? [] :
    [svg("line", { class: name, x1: x(from), x2: Math.max(x(to), x(from) + 0.5), y1: STRIP, y2: STRIP })];
  const mark = (value, node) => (value === null ? [] : [(node.setAttribute("transform", `translate(${x(value)} ${STRIP})`), node)]);
  return [
    ...line(at(0.05), at(0.95), "reach"),
    ...line(at(0.25), at(0.75), "half"),
    ...mark(number.mode, svg("path", { class: "mark mode", d: "M0 -4 L6 8 L-6 8 Z" })),
    ...mark(number.median, svg("path", { class: "mark median", d: "M-2 -9 H2 V9 H-2 Z" })),
    ...mark(number.trimmed_mean, svg("path", { class: "mark mean", d: "M0 -7 L7 0 L0 7 L-7 0 Z" })),
  ];
}

/** A distribution in a sentence or three. */
export function inWords(number, name) {
  if (number.mode === null) return `${name}: no number was found.`;
  const values = number.support.slice(0, 5).map(({ text, probability }) => `${text} with ${percent(probability)}`);
  const [low, high] = [quantile(number, 0.05), quantile(number, 0.95)];
  const interval = low === null ? "" : ` 90% interval from ${between(low, high, " to ")}.`;
  const estimates = `Mean ${brief(number.trimmed_mean)}, median ${brief(number.median)}, mode ${brief(number.mode)}.`;
  return `${name}: most probable are ${values.join(", ")}.${interval} ${estimates}`;
}

/** The probability of the returned numbers that a picture leaves out. */
function outside(number, [low, high]) {
  const inside = number.support.filter(({ value }) => value >= low && value <= high);
  return Math.max(0, number.mass.closed - inside.reduce((sum, { probability }) => sum + probability, 0));
}

/** The marks of the strip, named. */
export function legend(number, domain) {
  const entry = (mark, label, value) => h("li", {}, h("span", { class: `key ${mark}`, "aria-hidden": "true" }), `${label} `, h("b", {}, value));
  const [low, high] = [quantile(number, 0.05), quantile(number, 0.95)];
  return h("ul", { class: "legend" },
    entry("mode", "mode", brief(number.mode)),
    entry("median", "median", brief(number.median)),
    entry("mean", "mean", brief(number.trimmed_mean)),
    low === null ? null : entry("reach", "90% interval", between(low, high, " … ")),
    outside(number, padded(domain)) < 0.001 ? null : h("li", { class: "muted" }, `${percent(outside(number, padded(domain)))} lies elsewhere`));
}

/** Rows of label, bar and probability, with an optional note. */
export function ranked(rows, { title, most = 8, relative = true }) {
  const largest = relative ? Math.max(...rows.map(({ probability }) => probability), 1e-9) : 1;
  const row = ({ label, probability, chosen, note }) => {
    const bar = h("span", { class: "fill" });
    bar.style.inlineSize = `${(100 * probability) / largest}%`;
    return h("li", chosen ? { class: "chosen" } : {}, h("span", { class: "label" }, label),
      h("span", { class: "track", "aria-hidden": "true" }, bar), h("span", { class: "share" }, percent(probability), note ? h("span", { class: "bounds" }, ` ${note}`) : null));
  };
  const list = h("ol", { class: "ranked", "aria-label": title }, rows.slice(0, most).map(row));
  if (rows.length <= most) return [list];
  const more = h("button", { type: "button", class: "quiet" }, `Show ${rows.length - most} more`);
  more.addEventListener("click", () => {
    list.append(...rows.slice(most).map(row));
    more.remove();
  });
  return [list, more];
}

/** How the probability is divided. `allowed` names the texts that count as answers. */
export function masses(mass, allowed = "numbers") {
  const parts = [
    ["closed", allowed, mass.closed],
    ["invalid", "other text", mass.invalid],
    ["open", "not explored", mass.open],
  ];
  const bar = h("div", { class: "masses", "aria-hidden": "true" }, parts.map(([name, , share]) => {
    const part = h("span", { class: name });
    part.style.flexGrow = share;
    return part;
  }));
  const names = parts.map(([name, about, share]) => h("li", {}, h("span", { class: `key ${name}`, "aria-hidden": "true" }),
    `${name} `, h("b", {}, percent(share)), h("span", { class: "muted" }, ` ${about}`)));
  return h("div", {}, bar, h("ul", { class: "legend", "aria-label": "Where the probability went" }, names));
}
