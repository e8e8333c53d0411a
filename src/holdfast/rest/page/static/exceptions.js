// What made attempts fail, with the traceback of the user's function.

import { get } from "/page/api.js";
import { card, h, put } from "/page/dom.js";
import { moment } from "/page/format.js";

const TRACEBACK = "Traceback (most recent call last):";

export class ExceptionsTab {
  constructor(view) {
    this.view = view;
    this.isOfManager = true;
    this.element = h("div");
  }

  async refresh() {
    const { exceptionHistory } = await get(`${this.view.path}/exceptions?maxExceptions=50`);
    put(
      this.element,
      exceptionHistory.entries.length
        ? exceptionHistory.entries.map((entry) => failure(entry, this.view))
        : card(null, h("p", { class: "empty" }, "Nothing has failed since this process began.")),
      exceptionHistory.truncated ? h("p", { class: "note" }, "There were more, which are forgotten.") : null,
    );
    this.hasData = true;
  }

  close() {}
}

function failure(entry, view) {
  const message = entry.message || entry.stacktrace || "";
  const at = message.indexOf(TRACEBACK);
  const said = (at < 0 ? message : message.slice(0, at)).trim();
  const own = at < 0 ? "" : message.slice(at).trim();
  return card(
    null,
    h(
      "div",
      { class: "row" },
      h("h2", null, entry.exceptionName),
      entry.taskName ? h("span", { class: "note" }, "operator ", view.operator(entry.taskName)) : null,
      h("time", { class: "note grow end" }, moment(entry.timestamp)),
    ),
    h("p", { class: "said" }, said.length > 2000 ? `${said.slice(0, 2000)}…` : said),
    own ? [h("h3", null, "In your function"), h("pre", { tabindex: "0" }, own)] : null,
    entry.stacktrace
      ? h("details", null, h("summary", null, "Everything"), h("pre", { tabindex: "0" }, entry.stacktrace))
      : null,
  );
}
