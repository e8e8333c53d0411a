// One job: what it is doing in a line, what can be done with it, and a tab for each kind of thing.

import { get } from "/page/api.js";
import { CheckpointsTab } from "/page/checkpoints.js";
import { ConfigurationTab } from "/page/configuration.js";
import { actions } from "/page/actions.js";
import { badge, facts, h, put } from "/page/dom.js";
import { EpochsTab } from "/page/epochs.js";
import { ExceptionsTab } from "/page/exceptions.js";
import { brief, bytes, count, duration, moment } from "/page/format.js";
import { GraphTab } from "/page/graph.js";
import { StateTab } from "/page/state.js";

const TABS = [
  ["graph", "Graph", GraphTab],
  ["epochs", "Epochs", EpochsTab],
  ["checkpoints", "Checkpoints", CheckpointsTab],
  ["state", "State", StateTab],
  ["exceptions", "Exceptions", ExceptionsTab],
  ["configuration", "Configuration", ConfigurationTab],
];
const OVER = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];

export class JobView {
  constructor(id, tab, rest, refresh) {
    this.id = id;
    this.path = `/jobs/${id}`;
    this.refreshSoon = refresh;
    this.name = null;
    this.details = null;
    this.head = h("div", { class: "job-head" });
    this.tabs = h("nav", { class: "tabs", "aria-label": "About the job" });
    this.content = h("div", { class: "tab" });
    this.problem = h("div", { class: "banner", role: "alert" });
    this.element = h("div", null, this.head, this.tabs, this.problem, this.content);
    this.open(tab, rest);
  }

  get isOver() {
    return this.details !== null && OVER.includes(this.details.state);
  }

  open(name, rest) {
    const [key, , Tab] = TABS.find(([key]) => key === name) || TABS[0];
    if (this.key !== key) {
      if (this.tab) this.tab.close();
      this.key = key;
      this.tab = new Tab(this);
      put(this.problem);
      this.content.replaceChildren(this.tab.element);
    }
    if (this.tab.open) this.tab.open(rest);
    put(
      this.tabs,
      TABS.map(([key, title]) =>
        h("a", { href: `#/job/${this.id}/${key}`, "aria-current": key === this.key ? "page" : null }, title),
      ),
    );
  }

  async refresh(manager) {
    this.details = await get(this.path);
    this.name = this.details.name;
    this.showHead(manager);
    const tab = this.tab;
    try {
      await tab.refresh(this.details);
      if (tab === this.tab) put(this.problem);
    } catch (error) {
      // The job itself has answered: only this tab has nothing to show.
      if (!error.status) throw error;
      if (tab === this.tab) put(this.problem, h("p", null, error.message));
    }
  }

  showHead() {
    const job = this.details;
    const progress = job.progress;
    const sources = (job.plan?.nodes ?? []).map((node) => node.operator === "source" && node["real-time"]).filter(Boolean);
    const rate = sources.reduce((sum, source) => sum + source["write-records"], 0);
    put(
      this.head,
      h("div", { class: "row title" }, h("h1", null, job.name), badge(job.state), h("div", { class: "row end grow" }, actions(this))),
      facts([
        ["Running for", duration(job.duration), `since ${moment(job["start-time"])}`],
        progress && ["Last epoch", count(progress.epoch), `${duration(progress.duration_ms)}, ${count(progress.rows)} rows`],
        sources.length
          ? ["Rows a second", brief(rate), "in the last second"]
          : progress && ["Rows a second", brief(progress.rows_per_second), "in the last epoch"],
        progress && ["State", bytes(progress.state_bytes), "in run files"],
        ["Failures", count(job.restarts), job["tries-in-a-row"] ? `${job["tries-in-a-row"]} in a row` : job.restarts ? "a checkpoint has completed since" : "none"],
        job["taken-over"] && ["Taken over", moment(job["taken-over"]), "from a job manager that led before"],
        job.processes !== undefined && ["Processes", count(job.processes), "started by the job manager"],
      ]),
      job["last-failure"] && (job["tries-in-a-row"] || this.isOver)
        ? h("p", { class: "problem" }, h("a", { href: `#/job/${this.id}/exceptions` }, "Last failure"), ": ", job["last-failure"])
        : null,
    );
  }

  close() {
    this.tab.close();
  }
}
