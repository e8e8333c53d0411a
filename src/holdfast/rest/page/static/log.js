// The log of the job's process, as it grows; where the logs of its tasks are.

import { get } from "/page/api.js";
import { card, h, put } from "/page/dom.js";
import { bytes } from "/page/format.js";

const TAIL = 256 * 1024;
const KEPT = 512 * 1024;

export class LogTab {
  constructor(view) {
    this.view = view;
    this.isOfManager = true;
    this.next = null;
    this.text = "";
    this.summary = h("p", { class: "note" });
    this.lines = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log of the job" });
    this.tasks = h("p", { class: "note" });
    this.element = h("div", null, card("Job", this.summary, this.lines), card("Tasks", this.tasks));
    put(this.tasks, "The job has not run yet.");
  }

  async refresh(job) {
    let found = await get(`${this.view.path}/log?${this.next === null ? `tail=${TAIL}` : `offset=${this.next}`}`);
    // Another process, or a log that was rotated, begins anew.
    if (this.next !== null && found.next < this.next) {
      this.text = "";
      found = await get(`${this.view.path}/log?tail=${TAIL}`);
    }
    this.next = found.next;
    this.text = (this.text + found.text).slice(-KEPT);
    const isAtEnd = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 4;
    put(this.lines, this.text || "Nothing has been logged yet.");
    if (isAtEnd) this.lines.scrollTop = this.lines.scrollHeight;
    put(this.summary, `Log of Holdfast in the job's process on ${found.host}, the last ${bytes(Math.max(TAIL, this.text.length))} at most.`);
    const engine = job["engine-url"];
    put(
      this.tasks,
      "Tasks log to standard error of Spark's executors. ",
      /^https?:\/\//.test(engine || "")
        ? [h("a", { href: `${engine}/executors/`, target: "_blank", rel: "noreferrer" }, "Executors in Spark's web interface"), " has their logs on a cluster; in local mode they are in the job's own output."]
        : "Spark's web interface is off (spark.ui.enabled), or the job does not run on Spark.",
    );
  }

  close() {}
}
