// Requests to the REST interface that this page came from, with the token of who looks at it.

const KEY = "holdfast-token";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let askForToken = null;
let asking = null;

export function onTokenNeeded(ask) {
  askForToken = ask;
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

// `holdfast ui` opens #token=... or #/job/ID&token=...: the token goes into this tab, and out of the address.
// Returns whether there was one.
export function takeToken() {
  const [, place, token] = /^#(|\/job\/[0-9a-f]{32}&)token=([\w-]+)$/.exec(location.hash) ?? [];
  if (token === undefined) return false;
  sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname + (place && `#${place.slice(0, -1)}`));
  return true;
}

async function once(method, path, body, token) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method,
      headers,
      // A process that is frozen accepts connections. What changes a job may take a minute.
      signal: AbortSignal.timeout(method === "GET" ? 20000 : 90000),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch {
    throw new Refused("The process that served this page does not answer.", 0);
  }
}

// One question for the token, whoever needs it; all wait for the answer.
async function newToken(wasWrong) {
  asking ??= askForToken(wasWrong).then((token) => {
    sessionStorage.setItem(KEY, token);
    asking = null;
  });
  await asking;
}

export async function send(method, path, body) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const answer = await once(method, path, body, token);
    if (answer.status === 401) {
      if (sessionStorage.getItem(KEY) === token) await newToken(token !== null);
      continue;
    }
    let content = {};
    try {
      content = await answer.json();
    } catch {
      if (answer.ok) throw new Refused("The answer was cut off, or is not from Holdfast.", 0);
    }
    if (!answer.ok) {
      const reason = `The request was refused with HTTP ${answer.status}, without a reason. A proxy may have answered.`;
      throw new Refused((content.errors || [reason]).join(" "), answer.status);
    }
    return content;
  }
}

export const get = (path) => send("GET", path);

export const part = encodeURIComponent;

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${given.map(([name, value]) => `${name}=${part(value)}`).join("&")}` : "";
}

// Starts an operation, and returns what became of it.
export async function operate(path, body, told) {
  const { "request-id": id } = await send("POST", path, body);
  const kind = path.replace(/\/stop$/, "/savepoints");
  for (;;) {
    const answer = await get(`${kind}/${part(id)}`);
    if (answer.status.id === "COMPLETED") {
      const failure = answer.operation && answer.operation["failure-cause"];
      if (failure) throw new Refused(`${failure.class}: ${String(failure.message || "").split("\n")[0]}`, 500);
      return answer.operation;
    }
    if (told) told();
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}
