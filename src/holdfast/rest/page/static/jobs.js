// All jobs and their states.

import { get } from "/page/api.js";
import { badge, card, h, put, table } from "/page/dom.js";
import { count, duration, many, moment } from "/page/format.js";

const OVER = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];
const ORDER = ["RUNNING", "RESTARTING", "INITIALIZING", "CREATED", "CANCELLING", "FAILED", "SUSPENDED", "CANCELED", "FINISHED"];

export class JobsView {
  constructor(refresh) {
    this.text = h("input", { type: "search", id: "jobs-filter", placeholder: "Name or id", oninput: () => this.show() });
    this.state = h(
      "select",
      { id: "jobs-state", onchange: () => this.show() },
      h("option", { value: "" }, "all"),
      ORDER.map((state) => h("option", { value: state }, state.toLowerCase())),
    );
    this.summary = h("p", { class: "note", role: "status" });
    this.list = h("div");
    this.history = h("div");
    this.element = h(
      "div",
      null,
      h("h1", null, "Jobs"),
      h(
        "div",
        { class: "row filters" },
        h("label", { for: "jobs-filter" }, "Filter"),
        this.text,
        h("label", { for: "jobs-state" }, "State"),
        this.state,
        this.summary,
      ),
      card("Jobs that run", this.list),
      card("Jobs that have ended", this.history),
    );
    this.jobs = [];
    this.id = null;
  }

  async refresh(manager) {
    const { jobs } = await get("/jobs/overview");
    this.jobs = jobs.sort(
      (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b["start-time"] - a["start-time"] || a.name.localeCompare(b.name),
    );
    if (!manager && jobs.length === 1 && location.hash === "") location.replace(`#/job/${jobs[0].jid}`);
    this.show();
  }

  show() {
    const wanted = this.text.value.trim().toLowerCase();
    const kept = this.jobs.filter(
      (job) =>
        (!wanted || job.name.toLowerCase().includes(wanted) || job.jid.startsWith(wanted)) &&
        (!this.state.value || job.state === this.state.value),
    );
    const running = this.jobs.filter((job) => job.state === "RUNNING").length;
    put(this.summary, `${count(kept.length)} of ${many(this.jobs.length, "job")}, ${count(running)} running`);
    const columns = [
      { title: "Job", cell: (job) => h("a", { href: `#/job/${job.jid}`, title: job.jid }, job.name) },
      { title: "State", cell: (job) => badge(job.state) },
      { title: "Started", cell: (job) => moment(job["start-time"]) },
      { title: "Duration", number: true, cell: (job) => duration(job.duration) },
      { title: "Failures", number: true, cell: (job) => count(job.restarts) },
      { title: "Last failure", class: "wide", cell: (job) => h("span", { class: "cut", title: job["last-failure"] }, job["last-failure"] || "") },
    ];
    const ended = kept.filter((job) => OVER.includes(job.state)).sort((a, b) => b["end-time"] - a["end-time"]);
    const others = kept.filter((job) => !OVER.includes(job.state));
    const none = wanted || this.state.value ? "No job is like this." : null;
    put(this.list, table("Jobs", columns, others, none || "No job runs. Submit one: holdfast submit job.py"));
    columns.splice(2, 1, { title: "Ended", cell: (job) => moment(job["end-time"]) });
    put(this.history, table("Ended jobs, newest first", columns, ended, none || "No job has ended yet."));
  }

  close() {}
}
