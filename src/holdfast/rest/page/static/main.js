// Which view is shown, how it stays fresh, and what is said when nobody answers.

import { forgetToken, get, hasToken, onTokenNeeded, Refused, takeToken } from "/page/api.js";
import { ask } from "/page/dialog.js";
import { h, markScrolling, put } from "/page/dom.js";
import { moment } from "/page/format.js";
import { JobView } from "/page/job.js";
import { JobsView } from "/page/jobs.js";

const EVERY = 2000;
const main = document.getElementById("main");
const header = document.getElementById("header");
const banner = h("div", { class: "banner", role: "alert" });
const place = h("div", { class: "view" });
put(main, banner, place);
markScrolling(main);

let view = null;
let manager = null;
let isOneJob = false;
let seen = 0;
let timer = 0;
let busy = false;
let again = false;

onTokenNeeded(async (wasWrong) => {
  const { token } = await ask({
    title: "Token",
    text: wasWrong
      ? "The token is another one now, or was not right. It is kept in this tab only."
      : "Show that this job is yours. The token is kept in this tab only.",
    fields: [
      { name: "token", label: "Bearer token", kind: "password", required: true,
        note: "bearer_token in the newest file of the directory rest/ of the job, or of the job manager." },
    ],
    yes: "Log in",
    must: true,
    check: ({ token }) => (/^[\x21-\x7e]+$/.test(token) ? null : "A token has letters, digits and signs, and no spaces."),
  });
  return token;
});

function route() {
  const [, kind, id, tab, ...rest] = location.hash.slice(1).split("/").map((text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  });
  return kind === "job" && id ? { id, tab: tab || "graph", rest } : null;
}

function showHeader() {
  const at = route();
  const name = view && view.name;
  put(
    header,
    h(
      "nav",
      { "aria-label": "Where you are" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: "/page/icon.svg", alt: "", width: "24", height: "24" }), "Holdfast"),
      at ? [h("span", { class: "slash", "aria-hidden": "true" }, "/"), h("a", { href: `#/job/${at.id}` }, name || at.id.slice(0, 8))] : null,
    ),
    h(
      "div",
      { class: "row" },
      manager
        ? h("span", { class: "note" }, manager.leader ? "leading job manager " : "job manager standing by ", h("code", null, `${manager.host}:${manager.pid}`),
            manager["leads-since"] ? `, since ${moment(manager["leads-since"])}` : null,
            manager["jobs-taken-over"] ? `, jobs taken over: ${manager["jobs-taken-over"]}` : null)
        : null,
      hasToken()
        ? h("button", { type: "button", class: "quiet small", onclick: () => { forgetToken(); location.reload(); } }, "Log out")
        : null,
    ),
  );
}

function go() {
  const at = route();
  if (view && at && view.id === at.id) {
    view.open(at.tab, at.rest);
  } else {
    if (view) view.close();
    view = at ? new JobView(at.id, at.tab, at.rest, refresh) : new JobsView(refresh);
    put(place, view.element);
    seen = 0;
    put(banner);
  }
  showHeader();
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  const shown = view;
  try {
    await look();
    await shown.refresh(manager, pause());
    if (shown === view) {
      seen = Date.now();
      put(banner, shown.isOver ? h("p", null, shown.ending) : null);
      shown.element.classList.remove("stale");
    }
  } catch (error) {
    if (shown === view) explain(error);
  }
  busy = false;
  document.title = view.name ? `${view.name} · Holdfast` : "Holdfast";
  showHeader();
  timer = setTimeout(refresh, again ? 0 : pause());
}

function pause() {
  return document.hidden || view.isOver ? 5 * EVERY : EVERY;
}

// Whether this is a job manager; the process of one job has no overview.
async function look() {
  if (isOneJob) return;
  try {
    manager = await get("/overview");
  } catch (error) {
    if (error.status !== 501) throw error;
    isOneJob = true;
  }
}

function explain(error) {
  const since = seen ? ` What you see is from ${moment(seen)}.` : "";
  if (!(error instanceof Refused)) {
    console.error(error);
    put(banner, h("p", null, `This page cannot show what it has got: a defect of the page. Reload it, or use REST.${since}`));
    return;
  }
  if (view.isOver) {
    // It has ended as it said, and its process with it.
    put(banner, h("p", null, view.ending));
    return;
  }
  view.element.classList.add("stale");
  const what =
    error.status === 0
      ? `${error.message} The job has ended, or its process has died; another one may have taken over elsewhere.${since} Trying again.`
      : `${error.message}${since}`;
  put(banner, h("p", null, what));
}

addEventListener("hashchange", () => {
  if (takeToken()) return location.reload();
  go();
  main.focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
takeToken();
go();
