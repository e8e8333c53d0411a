// Checkpoints and savepoints: their history, their sizes by operator and state, and what two of them differ in.

import { get, part } from "/page/api.js";
import { badge, card, facts, h, put, table } from "/page/dom.js";
import { bytes, count, duration, moment, NONE, signed } from "/page/format.js";

const KINDS = { CHECKPOINT: "checkpoint", SAVEPOINT: "savepoint", SYNC_SAVEPOINT: "savepoint, stopped" };

export class CheckpointsTab {
  constructor(view) {
    this.view = view;
    this.facts = h("div");
    this.list = h("div");
    this.details = h("div", { "aria-live": "polite" });
    this.first = h("select", { id: "compare-first" });
    this.second = h("select", { id: "compare-second" });
    this.result = h("div", { "aria-live": "polite" });
    this.element = h(
      "div",
      null,
      this.facts,
      card("History", this.list),
      this.details,
      card(
        "Differences",
        h(
          "form",
          { class: "row filters", onsubmit: (event) => { event.preventDefault(); this.compare(); } },
          h("label", { for: "compare-first" }, "Between"),
          this.first,
          h("label", { for: "compare-second" }, "and"),
          this.second,
          h("button", { type: "submit", class: "quiet" }, "Compare"),
        ),
        this.result,
      ),
    );
  }

  open([id]) {
    if (id !== this.id) {
      put(this.details);
      this.shown = null;
    }
    this.id = id || null;
    if (this.id && this.view.hasAll) {
      const elsewhere = "The job has ended, and this page has not read this checkpoint. `holdfast inspect` reads it from its path.";
      put(this.details, card(`Checkpoint ${this.id}`, h("p", { class: "empty" }, elsewhere)));
    }
  }

  async refresh() {
    const [overview, { snapshots }] = await Promise.all([get(`${this.view.path}/checkpoints`), get(`${this.view.path}/state`)]);
    this.showFacts(overview);
    this.showHistory(overview, snapshots);
    this.offer(snapshots);
    this.hasData = true;
    if (this.id && this.shown !== this.id) await this.showDetails(this.id);
  }

  showFacts({ counts, summary, latest }) {
    const restored = latest.restored;
    put(
      this.facts,
      facts([
        ["Completed", count(counts.completed), `${count(counts.failed)} failed, ${count(counts.in_progress)} in progress`],
        ["Duration", duration(summary.end_to_end_duration.avg), `99% within ${duration(summary.end_to_end_duration.p99)}`],
        ["Size of all state", bytes(latest.completed ? latest.completed.state_size : null), "of the newest"],
        ["Written", bytes(summary.checkpointed_size.avg), "by one, on average"],
        restored ? ["Restored", `${restored.is_savepoint ? "savepoint" : "checkpoint"} ${restored.id}`, moment(restored.restore_timestamp)] : null,
      ]),
    );
  }

  showHistory({ history }, snapshots) {
    const kept = new Set(snapshots.map((snapshot) => snapshot.id));
    const known = new Set(history.map((entry) => entry.id));
    const older = snapshots
      .filter((snapshot) => !known.has(snapshot.id))
      .map((snapshot) => ({ id: snapshot.id, status: "COMPLETED", checkpoint_type: snapshot.type, external_path: snapshot.path, older: true }));
    put(
      this.list,
      table(
        "Checkpoints and savepoints, newest first",
        [
          { title: "Id", number: true, cell: (one) => h("a", { href: `#/job/${this.view.id}/checkpoints/${one.id}`, "aria-current": String(one.id) === this.id ? "true" : null }, String(one.id)) },
          { title: "Kind", cell: (one) => KINDS[one.checkpoint_type] || one.checkpoint_type },
          { title: "Status", cell: (one) => badge(one.status) },
          { title: "Triggered", cell: (one) => moment(one.trigger_timestamp) },
          { title: "Duration", number: true, cell: (one) => duration(one.end_to_end_duration) },
          { title: "Alignment", number: true, cell: (one) => duration(one.alignment_duration) },
          { title: "Synchronous", number: true, cell: (one) => duration(one.sync_duration) },
          { title: "Written", number: true, cell: (one) => bytes(one.checkpointed_size) },
          { title: "All state", number: true, cell: (one) => bytes(one.state_size) },
          { title: "Subtasks", number: true, cell: (one) => (one.older ? NONE : `${count(one.num_acknowledged_subtasks)} of ${count(one.num_subtasks)}`) },
          { title: "Where", class: "wide", cell: (one) => h("span", { class: "cut", title: one.failure_message || one.external_path },
              one.failure_message || (one.external_path ? (kept.has(one.id) ? one.external_path : "no longer retained") : "")) },
        ],
        [...history, ...older],
        "No checkpoint has been triggered yet.",
      ),
    );
  }

  async showDetails(id) {
    const [details, held] = await Promise.all([
      get(`${this.view.path}/checkpoints/details/${part(id)}`).catch(() => null),
      get(`${this.view.path}/state/${part(id)}`).catch((error) => ({ error: error.message })),
    ]);
    if (id !== this.id) return;
    if (!details && held.error) {
      put(this.details, card(`Checkpoint ${id}`, h("p", { class: "empty" }, held.error)));
      return;
    }
    this.shown = details && details.status === "IN_PROGRESS" ? null : id;
    put(
      this.details,
      card(
        `Checkpoint ${id}`,
        details && details.failure_message ? h("p", { class: "problem" }, details.failure_message) : null,
        details ? h("h3", null, "By operator") : null,
        details
          ? table(
              "Operators in the checkpoint",
              [
                { title: "Operator", cell: ([uid]) => this.view.operator(uid) },
                { title: "Written", number: true, cell: ([, one]) => bytes(one.checkpointed_size) },
                { title: "All state", number: true, cell: ([, one]) => bytes(one.state_size) },
                { title: "Duration", number: true, cell: ([, one]) => duration(one.end_to_end_duration) },
                { title: "Alignment", number: true, cell: ([, one]) => duration(one.alignment_duration) },
                { title: "Synchronous", number: true, cell: ([, one]) => duration(one.sync_duration) },
                { title: "Subtasks", number: true, cell: ([, one]) => `${count(one.num_acknowledged_subtasks)} of ${count(one.num_subtasks)}` },
              ],
              Object.entries(details.tasks).map((of) => ({ of })),
            )
          : null,
        h("h3", null, "By state"),
        held.error ? h("p", { class: "empty" }, held.error) : stateSizes(held, this.view),
      ),
    );
  }

  offer(snapshots) {
    const options = () =>
      snapshots.map((one) => h("option", { value: one.id }, `${one.id} (${KINDS[one.type]}, ${moment(one.timestamp)})`));
    const wanted = [this.first.value, this.second.value];
    const ids = snapshots.map((one) => String(one.id));
    put(this.first, options());
    put(this.second, options());
    this.first.value = ids.includes(wanted[0]) ? wanted[0] : ids[Math.min(1, ids.length - 1)] || "";
    this.second.value = ids.includes(wanted[1]) ? wanted[1] : ids[0] || "";
  }

  async compare() {
    const [first, second] = [this.first.value, this.second.value];
    if (!first || !second) return;
    put(this.result, h("p", { class: "note" }, "Comparing …"));
    try {
      const found = await get(`${this.view.path}/state/${part(first)}/difference/${part(second)}`);
      put(this.result, differences(found.differences, first, second, this.view));
    } catch (error) {
      put(this.result, h("p", { class: "problem" }, error.message));
    }
  }

  close() {}
}

function stateSizes(held, view) {
  const most = Math.max(1, ...held.states.map((state) => state.bytes));
  return table(
    "Sizes by state",
    [
      { title: "State", cell: (state) => h("a", { href: `#/job/${view.id}/state/${held.id}/${part(state.uid)}/${part(state.state)}` }, state.state) },
      { title: "Operator", cell: (state) => view.operator(state.uid) },
      { title: "Kind", cell: (state) => state.kind },
      { title: "Rows", number: true, cell: (state) => count(state.rows) },
      { title: "Bytes", number: true, cell: (state) => bytes(state.bytes) },
      { title: "Share", cell: (state) => h("span", { class: "bar", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * state.bytes) / most}%` } })) },
    ],
    held.states,
    "It holds no state.",
  );
}

function differences(found, first, second, view) {
  const said = (facts, name) => (facts && name in facts ? (name === "bytes" ? bytes(facts[name]) : String(facts[name])) : "");
  const change = (before, after, name) =>
    before && after && typeof before[name] === "number" && typeof after[name] === "number"
      ? signed(after[name] - before[name], name === "bytes" ? bytes : count)
      : "";
  const rows = found.flatMap((one) => {
    const names = Object.keys(one.before || one.after || {});
    return (names.length ? names : [""]).map((name) => ({ of: { one, name } }));
  });
  return table(
    `Differences between ${first} and ${second}`,
    [
      { title: "Operator", cell: ({ one }) => view.operator(one.uid) },
      { title: "State", cell: ({ one }) => one.state || "(operator)" },
      { title: "Change", cell: ({ one }) => one.change },
      { title: "What", cell: ({ name }) => name.replaceAll("_", " ") },
      { title: `In ${first}`, number: true, cell: ({ one, name }) => said(one.before, name) },
      { title: `In ${second}`, number: true, cell: ({ one, name }) => said(one.after, name) },
      { title: "Difference", number: true, cell: ({ one, name }) => change(one.before, one.after, name) },
    ],
    rows,
    "Both hold the same.",
  );
}
