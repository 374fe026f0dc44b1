// Requests to this server: JSON, streams of events, errors.

const KEY = "ntl-server-key";

let key = read();

function read() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** The key of this tab; it never goes into a link, the history or copied code. */
export function setKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // The key then lasts until the page is closed.
  }
}

export const hasKey = () => key !== "";

/** A response with an error, or no response. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null, id = null, retry = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code, id, retry });
  }
}

async function send(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw new ApiError(error?.message ?? answer.statusText, {
    status: answer.status,
    param: error?.param,
    code: error?.code,
    id: answer.headers.get("x-request-id"),
    retry: answer.headers.get("retry-after"),
  });
}

/** Requests a JSON response. */
export const ask = async (path, body, signal) => (await send(path, body, signal)).json();

/** Calls `each` with every event of a streamed response. */
export async function stream(path, body, signal, each) {
  const answer = await send(path, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("The server ended the answer too early.");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ApiError(parsed.error.message, { param: parsed.error.param, code: parsed.error.code });
      each(parsed);
    }
  }
}
