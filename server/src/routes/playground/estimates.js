// The value that each objective returns, read from one response of the server.

/** Quantiles that the slider stops at. */
const LEVELS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95];

/** Quantiles that the page requests; the outer ones limit the picture. */
export const QUANTILES = [0.01, ...LEVELS, 0.99];

/** The names of the slider's objectives. */
export const OBJECTIVES = ["mode", ...LEVELS.map((level) => (level === 0.5 ? "median" : String(level))), "mean"];

const isQuantile = (name) => /^[\d.]+$/.test(name);

/** The `objective` of a request. */
export const objectiveOf = (name) => (isQuantile(name) ? { quantile: Number(name) } : name);

/** The label of an objective below the slider. */
export const labelOf = (name) => (isQuantile(name) ? `${100 * Number(name)}%` : name);

/** The error that an objective minimises. */
export function meaning(name) {
  if (name === "mode") return "most often correct: for exact match";
  if (name === "median") return "least absolute error";
  if (name === "mean") return "least squared error, without the outer 0.5% of each tail";
  const level = Number(name);
  const [worse, times] = level > 0.5 ? ["below", level / (1 - level)] : ["above", (1 - level) / level];
  return `least pinball loss: a guess ${worse} the truth costs ${brief(times)} times as much`;
}

const brief = (times) => String(Number(times.toFixed(1)));

export const title = (name) => (isQuantile(name) ? `${labelOf(name)} quantile` : name);

/** Whether the server replaces an estimate without bounds. Draws stand for the open mass. */
const hasBounds = (number) => ["tree", "xval", "head"].includes(number.method) && !number.sampled;

/**
 * The estimate of an objective: {value, bounds, instead}. `instead` names the estimate that replaces one without bounds.
 */
export function estimate(number, name) {
  // No number was found.
  if (number.mode === null) return { value: null, bounds: null, instead: null };
  if (name === "mode") return { value: number.mode, bounds: null, instead: null };
  const found = quantityOf(number, name);
  if (!hasBounds(number) || found.bounds) return { ...found, instead: null };
  const median = number.bounds.median;
  return median ? { value: number.median, bounds: median, instead: "median" } : { value: null, bounds: null, instead: null };
}

function quantityOf(number, name) {
  if (name === "mean") return { value: number.trimmed_mean, bounds: number.bounds.trimmed_mean };
  if (name === "median") return { value: number.median, bounds: number.bounds.median };
  const index = number.quantiles.findIndex(({ q }) => q === Number(name));
  return { value: number.quantiles[index]?.value ?? null, bounds: number.bounds.quantiles[index] ?? null };
}

export const quantile = (number, level) => number.quantiles.find(({ q }) => q === level)?.value ?? null;

/** The values that a picture shows: the central 90% and all estimates, with room on both sides up to the central 98%. */
export function domainOf(number) {
  const known = (values) => values.filter((value) => value !== null);
  const inside = known([number.mode, number.median, number.trimmed_mean, quantile(number, 0.05), quantile(number, 0.95)]);
  if (!inside.length) return null;
  const [low, high] = [Math.min(...inside), Math.max(...inside)];
  const room = Math.max(0.75 * (high - low), 5);
  const [least, most] = [quantile(number, 0.01) ?? low, quantile(number, 0.99) ?? high];
  return [Math.min(low, Math.max(least, low - room)), Math.max(high, Math.min(most, high + room))];
}
