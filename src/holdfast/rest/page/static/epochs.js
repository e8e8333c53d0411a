// Epochs as they come: rows a second, where the time goes, how far event time is behind, and state.

import { Chart } from "/page/chart.js";
import { card, facts, h, put, table } from "/page/dom.js";
import { brief, bytes, count, duration, many, moment, NONE, ofTime } from "/page/format.js";

const SHOWN = 25;

// An epoch in parts that do not overlap.
function phases(epoch) {
  const functions = Math.max(0, epoch.function_ms - epoch.saving_ms);
  const engine = Math.max(0, epoch.task_ms - epoch.function_ms);
  const known = epoch.task_ms + epoch.checkpoint_ms + epoch.commit_ms;
  return {
    functions,
    saving: epoch.saving_ms,
    engine,
    checkpoint: epoch.checkpoint_ms,
    commit: epoch.commit_ms,
    planning: Math.max(0, epoch.duration_ms - known),
  };
}

const PHASES = [
  ["functions", "functions", "--c1"],
  ["saving", "saving state", "--c2"],
  ["engine", "engine", "--c3"],
  ["checkpoint", "checkpoint", "--c4"],
  ["commit", "commit", "--c5"],
  ["planning", "planning", "--c6"],
];

// Of a real-time epoch the operator that has the most of a kind of time.
function most(epoch, kind) {
  const known = epoch.real_time ? epoch.real_time.operators : [];
  return known.reduce((found, one) => (found === null || one[kind] > found[kind] ? one : found), null);
}

export class EpochsTab {
  constructor(view) {
    this.view = view;
    this.parts = [];
    this.facts = h("div");
    this.rows = new Chart("Rows a second", [{ label: "rows/s", colour: "--c1", filled: true }], brief);
    this.time = new Chart(
      "Time of an epoch, by phase",
      [...PHASES].reverse().map(([name, label, colour]) => ({ label, colour, solid: true, own: () => this.parts.map((part) => part[name]) })),
      duration,
    );
    this.load = new Chart(
      "Time of the tasks",
      [{ label: "busy", colour: "--c1" }, { label: "back-pressured", colour: "--c2" }],
      ofTime,
      "the operator that has most of it",
    );
    this.barrier = new Chart(
      "Barriers",
      [{ label: "alignment", colour: "--c3" }, { label: "snapshot", colour: "--c4" }],
      duration,
      "the slowest task",
    );
    this.lag = new Chart("Watermark lag", [{ label: "watermark lag", colour: "--c2" }], duration);
    this.state = new Chart("State", [{ label: "bytes in run files", colour: "--c3", filled: true }], bytes);
    this.lagPlace = h("div", { hidden: true }, this.lag.element);
    this.timePlace = h("div", null, this.time.element);
    this.loadPlace = h("div", { hidden: true }, this.load.element);
    this.barrierPlace = h("div", { hidden: true }, this.barrier.element);
    this.list = h("div");
    this.element = h(
      "div",
      null,
      this.facts,
      h("div", { class: "charts" }, this.rows.element, this.timePlace, this.loadPlace, this.barrierPlace, this.state.element, this.lagPlace),
      card("Epochs", this.list),
    );
  }

  async refresh() {
    const found = await this.view.loadEpochs();
    const epochs = this.view.epochs;
    put(this.facts, this.summary(found));
    this.hasData = true;
    const times = epochs.map((epoch) => (epoch.started + epoch.duration_ms) / 1000);
    const last = epochs[epochs.length - 1];
    const rates = epochs.map((epoch) => epoch.rows_per_second);
    this.rows.show([times, rates], last ? `${brief(last.rows_per_second)} rows a second in epoch ${last.epoch}.` : "");
    const isRealTime = Boolean(last && last.real_time);
    this.timePlace.hidden = isRealTime;
    this.loadPlace.hidden = this.barrierPlace.hidden = !isRealTime;
    if (isRealTime) this.showRealTime(times, epochs, last);
    else {
      this.parts = epochs.map(phases);
      this.time.show([times, ...stacked(this.parts)], last ? `Epoch ${last.epoch} took ${duration(last.duration_ms)}.` : "");
    }
    this.state.show([times, epochs.map((epoch) => epoch.state_bytes)], last ? `${bytes(last.state_bytes)} of state.` : "");
    const lags = epochs.map((epoch) => (epoch.watermark === null ? null : Math.max(0, epoch.started - epoch.watermark)));
    this.lagPlace.hidden = lags.every((lag) => lag === null);
    if (!this.lagPlace.hidden) this.lag.show([times, lags], `${duration(lags[lags.length - 1])} behind the clock.`);
    this.showList(epochs);
  }

  showRealTime(times, epochs, last) {
    const shares = (kind) => epochs.map((epoch) => most(epoch, kind)?.[kind] ?? null);
    const parts = (name) => epochs.map((epoch) => epoch.real_time?.[name] ?? null);
    this.load.show([times, shares("busy"), shares("back_pressured")],
      `Busy ${this.named(last, "busy")}, back-pressured ${this.named(last, "back_pressured")}.`);
    this.barrier.show([times, parts("alignment_ms"), parts("sync_ms")],
      `Alignment ${duration(last.real_time.alignment_ms)}, snapshot ${duration(last.real_time.sync_ms)}.`);
  }

  named(epoch, kind) {
    const one = most(epoch, kind);
    return one ? `${ofTime(one[kind])} ${this.view.label(one.id)}` : NONE;
  }

  summary(found) {
    const recent = this.view.epochs.slice(-20);
    const last = recent[recent.length - 1];
    const rows = recent.reduce((sum, epoch) => sum + epoch.rows, 0);
    const time = recent.reduce((sum, epoch) => sum + epoch.duration_ms, 0);
    return facts([
      ["Epochs", count(found.total), found.repeated ? `${count(found.repeated)} run again` : "since this process began"],
      ["Rows", count(found.rows), "read from sources since then"],
      last && ["Rows a second", time ? brief((1000 * rows) / time) : NONE, `over the last ${many(recent.length, "epoch")}`],
      last && ["Time of an epoch", duration(time / recent.length), "mean of the same"],
      ...found.sources.map((source) => ["Source is behind", behind(source), h("span", { class: "cut", title: this.view.label(source.id) }, this.view.operator(source.id))]),
      last && ["Position of the sources", h("span", { class: "cut", title: last.position }, last.position)],
      last && ["Watermark", moment(last.watermark), last.watermark === null ? "no event time" : `${duration(Math.max(0, found.now - last.watermark))} behind the clock`],
    ]);
  }

  showList(epochs) {
    const cell = (name) => (epoch) => duration(phases(epoch)[name]);
    const last = epochs[epochs.length - 1];
    const parts = last && last.real_time ? this.realTime() : PHASES.map(([name, title]) => ({ title: title[0].toUpperCase() + title.slice(1), number: true, cell: cell(name) }));
    put(
      this.list,
      table(
        "The newest epochs, newest first",
        [
          { title: "Epoch", number: true, cell: (epoch) => count(epoch.epoch) },
          { title: "Began", cell: (epoch) => moment(epoch.started) },
          { title: "Rows", number: true, cell: (epoch) => count(epoch.rows) },
          { title: "Rows/s", number: true, cell: (epoch) => brief(epoch.rows_per_second) },
          { title: "Took", number: true, cell: (epoch) => duration(epoch.duration_ms) },
          ...parts,
          { title: "Checkpoint id", number: true, cell: (epoch) => (epoch.checkpoint_id === null ? NONE : count(epoch.checkpoint_id)) },
          { title: "Watermark", cell: (epoch) => moment(epoch.watermark) },
        ],
        epochs.slice(-SHOWN).reverse(),
        "No epoch has ended yet.",
      ),
    );
  }

  realTime() {
    return [
      { title: "Busiest operator", cell: (epoch) => this.named(epoch, "busy") },
      { title: "Most back-pressured", cell: (epoch) => this.named(epoch, "back_pressured") },
      { title: "Alignment", number: true, cell: (epoch) => duration(epoch.real_time?.alignment_ms) },
      { title: "Snapshot", number: true, cell: (epoch) => duration(epoch.real_time?.sync_ms) },
      { title: "Checkpoint", number: true, cell: (epoch) => duration(epoch.checkpoint_ms) },
    ];
  }

  close() {
    for (const chart of [this.rows, this.time, this.load, this.barrier, this.lag, this.state]) chart.close();
  }
}

// What waits in a source: it counts records, or files.
function behind(source) {
  return source.files_behind === undefined
    ? many(source.behind, "row")
    : `${many(source.files_behind, "file")}, ${bytes(source.bytes_behind)}`;
}

// Each phase with those below it, the whole first: the areas are drawn over each other.
function stacked(parts) {
  const sums = parts.map(() => 0);
  const layers = PHASES.map(([name]) => parts.map((part, at) => (sums[at] += part[name])));
  return layers.reverse();
}
