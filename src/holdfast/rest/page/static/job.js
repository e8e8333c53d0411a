// One job: what it is doing in a line, what can be done with it, and a tab for each kind of thing.

import { get } from "/page/api.js";
import { CheckpointsTab } from "/page/checkpoints.js";
import { ConfigurationTab } from "/page/configuration.js";
import { actions } from "/page/actions.js";
import { badge, facts, h, put } from "/page/dom.js";
import { EpochsTab } from "/page/epochs.js";
import { ExceptionsTab } from "/page/exceptions.js";
import { brief, bytes, count, duration, many, moment } from "/page/format.js";
import { GraphTab } from "/page/graph.js";
import { LogTab } from "/page/log.js";
import { StateTab } from "/page/state.js";

const TABS = [
  ["graph", "Graph", GraphTab],
  ["epochs", "Epochs", EpochsTab],
  ["checkpoints", "Checkpoints", CheckpointsTab],
  ["state", "State", StateTab],
  ["exceptions", "Exceptions", ExceptionsTab],
  ["log", "Log", LogTab],
  ["configuration", "Configuration", ConfigurationTab],
];
const OVER = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];
const EPOCHS = 600;

export class JobView {
  constructor(id, tab, rest, refresh) {
    this.id = id;
    this.path = `/jobs/${id}`;
    this.refreshSoon = refresh;
    this.name = null;
    this.details = null;
    this.names = new Map();
    this.epochs = [];
    // Tabs stay once they are made: they keep what they have shown when nobody answers any more.
    this.made = new Map();
    this.hasAll = false;
    this.isAlone = false;
    this.head = h("div", { class: "job-head" });
    this.tabs = h("nav", { class: "tabs scroll", "aria-label": "About the job" });
    this.content = h("div", { class: "tab" });
    this.problem = h("div", { class: "banner", role: "alert" });
    this.element = h("div", null, this.head, this.tabs, this.problem, this.content);
    this.open(tab, rest);
  }

  get isOver() {
    return this.details !== null && OVER.includes(this.details.state);
  }

  // What to say of a job that has ended; the page keeps what it has seen.
  get ending() {
    const { state, "end-time": ended } = this.details;
    const kept = this.tab.hasData ? " This page is not live any more: it keeps what it has seen last." : "";
    // Without a job manager the process that serves the page ends with the job.
    const once = this.isAlone ? " Do not reload it: its server ends with the job. A job manager keeps results and logs of ended jobs." : "";
    return `The job ended at ${moment(ended)} (${state}).${kept}${once}`;
  }

  // The name of an operator with its uid, which is what options, metrics, errors and the command line call it.
  label(uid) {
    const name = this.names.get(uid);
    return name && name !== uid ? `${name} (${uid})` : uid;
  }

  operator(uid) {
    const name = this.names.get(uid);
    return name && name !== uid ? [name, " ", h("code", { class: "uid", title: "uid" }, uid)] : uid;
  }

  tabOf(key) {
    const [, , Tab] = TABS.find((one) => one[0] === key);
    if (!this.made.has(key)) this.made.set(key, new Tab(this));
    return this.made.get(key);
  }

  open(name, rest) {
    const [key] = TABS.find(([key]) => key === name) || TABS[0];
    if (this.key !== key) {
      this.key = key;
      this.tab = this.tabOf(key);
      put(this.problem);
      this.content.hidden = false;
      this.content.replaceChildren(this.tab.element);
    }
    if (this.tab.open) this.tab.open(rest);
    put(
      this.tabs,
      TABS.map(([key, title]) =>
        h("a", { href: `#/job/${this.id}/${key}`, "aria-current": key === this.key ? "page" : null }, title),
      ),
    );
    // In a narrow window the tabs scroll.
    this.tabs.querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  async refresh(manager, every) {
    this.isAlone = manager === null;
    const fresh = await get(`${this.path}?watch=${every}`);
    const before = this.details;
    this.details = { ...before, ...fresh };
    // A process that has only begun has no graph yet, and one that has ended none any more.
    if (before?.plan?.nodes.length && !fresh.plan?.nodes.length) {
      this.details.plan = before.plan;
      this.details.vertices = before.vertices;
    }
    this.name = fresh.name;
    for (const node of this.details.plan?.nodes ?? []) this.names.set(node.id, node.description);
    this.showHead();
    if (!this.isOver) this.hasAll = false;
    else if (fresh.plan && !this.hasAll) await this.keepAll();
    await this.refreshTab(!this.isOver || Boolean(fresh.plan));
  }

  // The last chance: what its tabs show of a job that has ended, while its process still answers.
  async keepAll() {
    const tabs = TABS.map(([key]) => this.tabOf(key));
    await Promise.allSettled(tabs.map((tab) => (tab.keep ? tab.keep(this.details) : tab.refresh(this.details))));
    this.hasAll = true;
  }

  async refreshTab(hasProcess) {
    const tab = this.tab;
    if (!hasProcess && !tab.isOfManager) {
      const nothing = "The process of this job has ended, and this page has not seen it run. Log and exceptions are kept.";
      put(this.problem, tab.hasData ? null : h("p", null, nothing));
      this.content.hidden = !tab.hasData; // its cards are empty
      return;
    }
    try {
      await tab.refresh(this.details);
      tab.hasData = true;
      if (tab === this.tab) put(this.problem);
    } catch (error) {
      // The job itself has answered: only this tab has nothing to show.
      if (!error.status) throw error;
      if (tab === this.tab) put(this.problem, h("p", null, error.message));
    }
  }

  // The epochs of this process that the page knows; asks for the new ones only.
  async loadEpochs() {
    const since = this.epochs.length ? this.epochs[this.epochs.length - 1].started : 0;
    const found = await get(`${this.path}/epochs?since=${since}`);
    const last = this.epochs.length ? this.epochs[this.epochs.length - 1].started : 0;
    this.epochs = [...this.epochs, ...found.epochs.filter((epoch) => epoch.started > last)].slice(-EPOCHS);
    return found;
  }

  showHead() {
    const job = this.details;
    const progress = job.progress;
    const sources = (job.plan?.nodes ?? []).map((node) => node.operator === "source" && node["real-time"]).filter(Boolean);
    const rate = sources.reduce((sum, source) => sum + source["write-records"], 0);
    const engine = /^https?:\/\//.test(job["engine-url"] || "") ? job["engine-url"] : null;
    const tries = job["tries-in-a-row"];
    put(
      this.head,
      h("div", { class: "row title" }, h("h1", null, job.name), badge(job.state), h("div", { class: "row end grow" }, actions(this))),
      facts([
        this.isOver
          ? ["Ran for", duration(job.duration), `${moment(job["start-time"])} to ${moment(job["end-time"])}`]
          : ["Running for", duration(job.duration), `since ${moment(job["start-time"])}`],
        progress && ["Last epoch", count(progress.epoch), `${duration(progress.duration_ms)}, ${many(progress.rows, "row")}`],
        sources.length && !this.isOver
          ? ["Rows a second", brief(rate), "in the last second"]
          : progress && ["Rows a second", brief(progress.rows_per_second), "in the last epoch"],
        progress && ["State", bytes(progress.state_bytes), "in run files"],
        ["Failures", count(job.restarts), tries ? `${tries} in a row` : job.restarts ? "a checkpoint has completed since" : "none"],
        job["taken-over"] && ["Taken over", moment(job["taken-over"]), "from a job manager that led before"],
        job.processes !== undefined && ["Processes", count(job.processes), "started by the job manager"],
        engine && !this.isOver && ["Spark", h("a", { href: engine, target: "_blank", rel: "noreferrer" }, "web interface"), "jobs, stages and executors"],
      ]),
      job["last-failure"] && (tries || job.state === "FAILED")
        ? h("p", { class: "problem" }, h("a", { href: `#/job/${this.id}/exceptions` }, "Last failure"), ": ", job["last-failure"])
        : null,
    );
  }

  close() {
    for (const tab of this.made.values()) tab.close();
  }
}
