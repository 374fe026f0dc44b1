// Elements and texts. Nothing here parses markup: every string becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, properties, ...children) => build(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) => build(document.createElementNS(SVG, tag), properties, children);

// Controls, and marks that reorder or hide text (an answer could make `1` look like `1000`).
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/u;

/** Whether a character is shown by its name instead of itself. */
export const isInvisible = (character) => INVISIBLE.test(character);

/** An untrusted text as nodes, with names instead of invisible characters. */
export function plain(text) {
  const nodes = [];
  let run = "";
  for (const character of text) {
    if (!isInvisible(character)) {
      run += character;
      continue;
    }
    if (run) nodes.push(run);
    run = "";
    const code = character.codePointAt(0);
    const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(h("span", { class: "invisible", title: name }, code < 32 ? String.fromCodePoint(0x2400 + code) : name));
  }
  if (run) nodes.push(run);
  return nodes;
}

/** A long text, cut until a click shows the rest. */
export function cut(text, most = 2000) {
  if (text.length <= most) return [h("bdi", {}, plain(text))];
  const shown = h("bdi", {}, plain(text.slice(0, most)), "…");
  const more = h("button", { type: "button", class: "quiet" }, `Show all ${text.length} characters`);
  more.addEventListener("click", () => {
    shown.replaceChildren(...plain(text));
    more.remove();
  });
  return [shown, more];
}

/** Copies a text. Returns false if the browser does not allow it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** A probability in a few characters. */
export function percent(probability) {
  if (probability > 0.9995 && probability < 1) return "> 99.9%";
  if (probability > 0 && probability < 0.0005) return "< 0.1%";
  return `${(100 * probability).toFixed(1)}%`;
}

/** A number in a few characters, with `digits` significant digits unless it is an integer. */
export function brief(value, digits = 5) {
  if (value === null || value === undefined) return "none";
  const large = Math.abs(value) >= 1e15 || (value !== 0 && Math.abs(value) < 1e-6);
  if (large) return minus(value.toExponential(3));
  if (Number.isInteger(value)) return minus(String(value));
  // Digits before the point are never rounded away.
  const whole = Math.trunc(Math.abs(value)).toString().length;
  return minus(String(Number(value.toPrecision(Math.max(digits, whole + 1)))));
}

/** Two numbers, with enough digits that they differ. */
export function between(low, high, separator) {
  let digits = 5;
  while (digits < 17 && low !== high && brief(low, digits) === brief(high, digits)) digits += 1;
  return brief(low, digits) + separator + brief(high, digits);
}

const minus = (text) => text.replace("-", "−");

/** A number with its noun, in the singular or the plural. */
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

/** The box in which the page shows all errors: a paragraph for each message, and small print. */
export function errorBox(messages, details = []) {
  return h("div", { class: "notice error", role: "alert" }, messages.map((message) => h("p", {}, plain(message))),
    details.length ? h("p", { class: "note" }, plain(details.join(" · "))) : null);
}
