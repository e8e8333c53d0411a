// What a completed checkpoint or savepoint holds: one key, a scan, the largest keys and key groups.

import { get, part, query } from "/page/api.js";
import { card, facts, h, put, table } from "/page/dom.js";
import { bytes, count, many, moment, share } from "/page/format.js";

const LATEST = "latest";
const OF_SUBTASKS = ["split", "union", "broadcast"];

export class StateTab {
  constructor(view) {
    this.view = view;
    this.snapshot = h("select", { id: "snapshot", onchange: () => { this.held = null; this.load().catch((error) => this.fail(error)); } });
    this.summary = h("span", { class: "note" });
    this.list = h("div");
    this.explorer = h("div");
    this.element = h(
      "div",
      null,
      h("div", { class: "row filters" }, h("label", { for: "snapshot" }, "Checkpoint or savepoint"), this.snapshot, this.summary),
      card("States", this.list),
      this.explorer,
    );
  }

  open([snapshot, uid, state]) {
    this.wanted = snapshot ? { snapshot, uid, state } : null;
    if (this.snapshots) this.load().catch((error) => this.fail(error));
  }

  async refresh() {
    const { snapshots } = await get(`${this.view.path}/state`);
    this.snapshots = snapshots;
    const before = this.snapshot.value || LATEST;
    put(
      this.snapshot,
      h("option", { value: LATEST }, "newest checkpoint"),
      snapshots.map((one) => h("option", { value: one.id }, `${one.id}, ${one.type.toLowerCase()}, ${moment(one.timestamp)}`)),
    );
    const ids = [LATEST, ...snapshots.map((one) => String(one.id))];
    this.snapshot.value = ids.includes(before) ? before : LATEST;
    await this.load();
  }

  async load() {
    const wanted = this.wanted;
    if (wanted && !this.followed?.(wanted)) {
      const ids = [...this.snapshot.options].map((option) => option.value);
      if (ids.includes(wanted.snapshot)) this.snapshot.value = wanted.snapshot;
      this.followed = (other) => other === wanted;
    }
    const id = this.snapshot.value || LATEST;
    const newest = this.snapshots.find((one) => one.type === "CHECKPOINT");
    const number = id === LATEST ? newest?.id : Number(id);
    if (!this.held || this.held.id !== number) this.held = await get(`${this.view.path}/state/${part(id)}`);
    this.showStates();
    const chosen = wanted?.uid && this.held.states.find((one) => one.uid === wanted.uid && one.state === wanted.state);
    if (!chosen) {
      this.panel = null;
      put(this.explorer, wanted?.uid ? h("p", { class: "empty" }, "This checkpoint has no such state.") : null);
    } else if (!this.panel || this.panel.uid !== chosen.uid || this.panel.name !== chosen.state) {
      this.panel = new Explorer(this, chosen);
      put(this.explorer, this.panel.element);
      this.panel.scan();
    }
  }

  showStates() {
    const held = this.held;
    const most = Math.max(1, ...held.states.map((state) => state.bytes));
    this.hasData = true;
    put(this.summary, `checkpoint ${held.id}, epoch ${held.epoch}, completed ${moment(held.timestamp)}, ${bytes(held.state_size)}`);
    put(
      this.list,
      table(
        "States",
        [
          { title: "State", cell: (state) => h("a", { href: `#/job/${this.view.id}/state/${this.snapshot.value}/${part(state.uid)}/${part(state.state)}`,
              "aria-current": this.wanted?.uid === state.uid && this.wanted?.state === state.state ? "true" : null }, state.state) },
          { title: "Operator", cell: (state) => this.view.operator(state.uid) },
          { title: "Kind", cell: (state) => state.kind },
          { title: "Type", cell: (state) => h("code", { class: "cut", title: state.type }, state.type) },
          { title: "Rows in files", number: true, cell: (state) => count(state.rows) },
          { title: "Bytes", number: true, cell: (state) => bytes(state.bytes) },
          { title: "Share", cell: (state) => h("span", { class: "bar", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * state.bytes) / most}%` } })) },
        ],
        held.states,
        "It holds no state.",
      ),
    );
  }

  fail(error) {
    put(this.explorer, h("p", { class: "problem" }, error.message));
  }

  close() {}
}

class Explorer {
  constructor(tab, state) {
    this.tab = tab;
    this.uid = state.uid;
    this.name = state.state;
    this.hasKeys = !OF_SUBTASKS.includes(state.kind);
    this.found = h("div", { "aria-live": "polite" });
    const field = (id, label, hint, note) => {
      const input = h("input", { type: "text", id, placeholder: hint, autocomplete: "off", spellcheck: "false", "aria-describedby": note ? `${id}-note` : null });
      return [input, h("div", { class: "field inline" }, h("label", { for: id }, label), input, note ? h("p", { class: "note", id: `${id}-note` }, note) : null)];
    };
    const [key, keyField] = field("state-key", "Key", "", "As it is, or as JSON; several columns as a JSON list.");
    const [where, whereField] = field("state-where", "Where", "value > 100", "Columns and fields, as in value.name = \"x\" and key != \"y\".");
    const [contains, containsField] = field("state-contains", "Contains", "any text");
    Object.assign(this, { key, where, contains });
    const form = (act, ...content) =>
      h("form", { class: "row filters fields", onsubmit: (event) => { event.preventDefault(); act(); } }, content);
    this.element = h(
      "div",
      { "data-own": `state ${state.uid} ${state.state}` },
      card(
        [`${state.state} of `, tab.view.operator(state.uid)],
        h("p", { class: "note" }, `${state.kind} state, `, h("code", null, state.type), ". Only what a completed checkpoint holds is shown."),
        this.hasKeys
          ? [
              form(() => this.lookUp(), keyField, h("button", { type: "submit", class: "quiet" }, "Look up")),
              form(() => this.scan(), whereField, containsField, h("button", { type: "submit", class: "quiet" }, "Scan"),
                h("button", { type: "button", class: "quiet", onclick: () => this.largest() }, "Largest keys and key groups")),
            ]
          : null,
        this.found,
      ),
    );
  }

  get path() {
    return `${this.tab.view.path}/state/${part(this.tab.snapshot.value || LATEST)}/operators/${part(this.uid)}/${part(this.name)}`;
  }

  async show(waiting, work) {
    const mine = (this.turn = Symbol("turn"));
    put(this.found, h("p", { class: "note" }, waiting));
    try {
      const content = await work();
      if (mine === this.turn) put(this.found, content);
    } catch (error) {
      if (mine === this.turn) put(this.found, h("p", { class: "problem" }, error.message));
    }
  }

  lookUp() {
    const key = this.key.value;
    return this.show("Looking up …", async () => {
      const answer = await get(this.path + query({ key }) + (key === "" ? "?key=" : ""));
      const where = `checkpoint ${answer.checkpoint}`;
      return answer.rows.length
        ? [this.rows(answer), h("p", { class: "note" }, `From ${where}.`)]
        : h("p", { class: "empty" }, `This key has no state in ${where}.`);
    });
  }

  scan(start = 0) {
    const asked = { where: this.where.value.trim(), contains: this.contains.value, limit: 100, start };
    return this.show("Reading …", async () => {
      const answer = await get(this.path + query(this.hasKeys ? asked : {}));
      const more = answer.next;
      return [
        answer.rows.length
          ? this.rows(answer)
          : h("p", { class: "empty" }, more === null ? "No row is like this." : "No row is like this so far."),
        h(
          "div",
          { class: "row" },
          h("p", { class: "note" }, `${many(answer.rows.length, "row")} shown of ${count(answer.read)} read${answer.cut ? "; there are more in these key groups: narrow the scan" : ""}, checkpoint ${answer.checkpoint}.`),
          more !== null ? h("button", { type: "button", class: "quiet", onclick: () => this.scan(more) }, `Go on at key group ${more}`) : null,
        ),
      ];
    });
  }

  rows(answer) {
    const columns = answer.columns.map((column) => ({
      title: column.name.replaceAll("_", " "),
      number: /^(int|bigint|double|float|smallint|tinyint|decimal)/.test(column.type),
      class: "value",
      cell: (row) => row[column.name] ?? "",
    }));
    // Keys first: they are what a row is about.
    columns.sort((a, b) => (b.title === "key") - (a.title === "key"));
    return table(`Rows of ${this.name}`, columns, answer.rows);
  }

  largest() {
    return this.show("Reading all rows …", async () => {
      const found = await get(`${this.path}/largest`);
      const mean = found.bytes / Math.max(1, found.groups);
      return [
        facts([
          ["Keys", count(found.keys), `in checkpoint ${found.checkpoint}`],
          ["Rows", count(found.rows)],
          ["Bytes", bytes(found.bytes), "of keys and values, as they are in memory"],
          ["Key groups", count(found.groups), found.stopped_at === null ? "all read" : `read up to ${found.stopped_at}: the rest would take too long`],
        ]),
        h("h3", null, "Largest keys"),
        table(
          "Largest keys",
          [
            { title: "Key", class: "value", cell: (one) => one.key },
            { title: "Key group", number: true, cell: (one) => one.key_group },
            { title: "Rows", number: true, cell: (one) => count(one.rows) },
            { title: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
            { title: "Share", number: true, cell: (one) => share(one.bytes, found.bytes) },
          ],
          found.largest_keys,
        ),
        h("h3", null, "Largest key groups"),
        table(
          "Largest key groups",
          [
            { title: "Key group", number: true, cell: (one) => count(one.group) },
            { title: "Subtask", number: true, cell: (one) => count(one.subtask) },
            { title: "Rows", number: true, cell: (one) => count(one.rows) },
            { title: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
            { title: "Of the mean", number: true, cell: (one) => `${(one.bytes / mean).toFixed(1)} ×` },
          ],
          found.largest_groups,
        ),
      ];
    });
  }
}
