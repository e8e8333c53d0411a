// The graph of a job: operators by level, what flows between them, and the subtasks of the one that is chosen.

import { get, part } from "/page/api.js";
import { Chart } from "/page/chart.js";
import { card, facts, h, put, svg, table } from "/page/dom.js";
import { brief, bytes, count, duration, many, moment, NONE, ofTime } from "/page/format.js";
import { HEIGHT, layout, WIDTH } from "/page/layout.js";

const MOST_ROWS = 50;
const NARROW = 560;
const SMALLEST = 0.7;
const HOW = { HASH: "by key", BROADCAST: "to all", REBALANCE: "spread", FORWARD: "" };

export class GraphTab {
  constructor(view) {
    this.view = view;
    this.drawing = h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "Graph of the job" });
    this.subtasks = h("div", { class: "subtasks" });
    this.times = new Chart(
      "Time of the tasks of the chosen operator",
      [{ label: "busy", colour: "--c1" }, { label: "back-pressured", colour: "--c2" }, { label: "idle", colour: "--c6" }],
      ofTime,
      "its least idle subtask, at each checkpoint",
    );
    this.timesPlace = h("div", { class: "charts", hidden: true }, this.times.element);
    this.edges = h("div");
    this.since = h("p", { class: "note" });
    this.all = false;
    this.vertices = new Map();
    this.element = h(
      "div",
      null,
      card("Operators", this.drawing, h("p", { class: "note more" }, "Scroll sideways for the rest of the graph."), this.since),
      this.subtasks,
      this.timesPlace,
      card("Rows by edge", this.edges),
    );
    this.watcher = new ResizeObserver(() => this.job && this.draw(this.job));
    this.watcher.observe(this.drawing);
  }

  open([uid]) {
    if (uid !== this.uid) this.all = false;
    this.uid = uid || null;
    put(this.subtasks);
    this.timesPlace.hidden = true;
    // Of a job that has ended.
    if (this.view.hasAll) {
      this.draw(this.view.details);
      this.showChosen();
    }
  }

  async refresh(job) {
    this.draw(job);
    this.listEdges(job.plan?.nodes ?? []);
    put(this.since, `Totals of rows and bytes count since ${moment(job["start-time"])}, when this process began.`);
    const uid = this.uid;
    if (!uid) return;
    if ((job.vertices ?? []).some((vertex) => vertex.id === uid)) await this.load(uid);
    if (job.plan.nodes.some((node) => node["real-time"])) await this.view.loadEpochs();
    if (uid === this.uid) this.showChosen();
  }

  async load(uid) {
    this.vertices.set(uid, await get(`${this.view.path}/vertices/${part(uid)}`));
  }

  async keep(job) {
    await Promise.all((job.vertices ?? []).map((vertex) => this.load(vertex.id)));
    await this.view.loadEpochs();
    await this.refresh(job);
    this.hasData = true;
  }

  showChosen() {
    const vertex = this.vertices.get(this.uid);
    if (vertex) this.showSubtasks(vertex);
    const own = this.view.epochs.flatMap((epoch) => {
      const found = epoch.real_time?.operators.find((one) => one.id === this.uid);
      return found ? [{ at: (epoch.started + epoch.duration_ms) / 1000, ...found }] : [];
    });
    this.timesPlace.hidden = !own.length;
    if (!own.length) return;
    const of = (name) => own.map((one) => one[name]);
    const last = own[own.length - 1];
    this.times.show(
      [of("at"), of("busy"), of("back_pressured"), of("idle")],
      `${this.view.label(this.uid)}: busy ${ofTime(last.busy)}, back-pressured ${ofTime(last.back_pressured)}, idle ${ofTime(last.idle)}.`,
    );
  }

  // The graph fits as far as its text can be read, and scrolls beyond; in a narrow window it goes down.
  draw(job) {
    const nodes = job.plan?.nodes ?? [];
    if (!nodes.length) {
      put(this.drawing, h("p", { class: "empty" }, "The job has not begun: it has no graph yet."));
      return;
    }
    this.job = job;
    const known = new Map((job.vertices ?? []).map((vertex) => [vertex.id, vertex]));
    const room = this.drawing.clientWidth - 12;
    const goesDown = room > 0 && room < NARROW;
    const { places, width, height } = layout(nodes, goesDown);
    const zoom = room > 0 ? Math.min(1, Math.max(SMALLEST, room / width)) : 1;
    const lines = nodes.flatMap((node) => node.inputs.map((input) => this.edge(places, goesDown, node, input)));
    put(
      this.drawing,
      h(
        "div",
        { class: "canvas", style: { width: `${width}px`, height: `${height}px`, zoom: String(zoom) } },
        svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, lines),
        nodes.map((node) => this.node(node, known.get(node.id), places.get(node.id), job)),
      ),
    );
  }

  node(node, vertex, { x, y }, job) {
    const style = { left: `${x}px`, top: `${y}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` };
    const kind = node.operator;
    const title = h("span", { class: "name", title: this.view.label(node.id) }, node.description);
    const what = h("span", { title: `${kind}, uid ${node.id}` }, kind, node.id === node.description ? null : [" ", h("code", null, node.id)]);
    const link = { href: `#/job/${this.view.id}/graph/${part(node.id)}`, "aria-current": node.id === this.uid ? "true" : null };
    if (!vertex) {
      const live = node["real-time"];
      return h(live ? "a" : "div", { class: "node source", style, ...(live ? link : {}) }, title, h("span", { class: "note" }, what),
        live ? [h("span", { class: "numbers" }, `${brief(live["write-records"])} rows/s`), load(live)] : null);
    }
    const last = vertex["last-epoch"];
    const whole = job.progress ? job.progress.duration_ms : 0;
    const busy = whole ? Math.min(1, last["busy-time"] / whole) : 0;
    const skew = vertex.skew["read-records"];
    const sink = vertex.sink;
    const live = vertex["real-time"];
    return h(
      "a",
      { class: `node ${kind}`, style, ...link },
      title,
      h("span", { class: "note sides" }, what, h("span", null, many(vertex.tasks || vertex.parallelism, "subtask"))),
      h("span", { class: "numbers sides" },
        sink
          ? h("span", { title: "rows in, and committed" }, `${brief(vertex.metrics["read-records"])} → ${brief(sink["committed-records"])} rows`)
          : h("span", { title: "rows in and out" }, `${brief(vertex.metrics["read-records"])} → ${brief(vertex.metrics["write-records"])} rows`),
        vertex["state-bytes"] ? h("span", { title: "state" }, bytes(vertex["state-bytes"])) : null),
      live
        ? load(live)
        : h("span", { class: "bar", title: "the busiest subtask, of the time of the last epoch" }, h("span", { style: { width: `${Math.round(100 * busy)}%` } })),
      live ? null : h("span", { class: "numbers sides" },
        sink
          ? h("span", { title: "time of its last commit" }, `commit ${duration(sink["last-commit-time"])}`)
          : h("span", null, `busy ${duration(last["busy-time"])}`),
        sink && sink.lag ? h("span", { class: "warn", title: "how long its oldest rows wait for their commit" }, `waits ${duration(sink.lag)}`) : null,
        skew > 1.1 ? h("span", { class: skew >= 2 ? "warn" : null, title: "rows of the fullest subtask as a multiple of the mean" }, `skew ${skew}`) : null),
    );
  }

  edge(places, goesDown, node, input) {
    const from = places.get(input.id);
    const to = places.get(node.id);
    if (!from || !to) return null;
    const known = input["last-records"] === null || input["last-records"] === undefined;
    const rows = known ? null : many(input["last-records"], "row", brief);
    const size = input["last-bytes"] ? bytes(input["last-bytes"]) : HOW[input.ship_strategy];
    const text = (said, x, y, anchor) => (said ? svg("text", { x, y, "text-anchor": anchor }, said) : null);
    const attributes = { class: input.exchange === "pipelined" ? "edge chained" : "edge" };
    if (goesDown) {
      const [x1, y1, x2, y2] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y];
      const bend = Math.max(16, (y2 - y1) / 2);
      return svg(
        "g",
        attributes,
        svg("path", { d: `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2 - 7}` }),
        svg("path", { class: "head", d: `M${x2 - 4} ${y2 - 8} l4 8 l4 -8 z` }),
        text([rows, size].filter(Boolean).join(", "), x2 + 10, y2 - 14, "start"),
      );
    }
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
    const bend = Math.max(30, (x2 - x1) / 2);
    // The label of an edge over several levels is at its source: at its target it would lie on that of a shorter edge.
    const [x, y] = x2 - x1 > WIDTH ? [x1 + 54, y1] : [x2 - 54, y1 + (y2 - y1) * 0.62];
    return svg(
      "g",
      attributes,
      svg("path", { d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 7} ${y2}` }),
      svg("path", { class: "head", d: `M${x2 - 8} ${y2 - 4} l8 4 l-8 4 z` }),
      text(rows, x, y - 6, "middle"),
      text(size, x, y + 15, "middle"),
    );
  }

  listEdges(nodes) {
    const edges = nodes.flatMap((node) => node.inputs.map((input) => ({ node, input })));
    const how = ({ input }) =>
      input.exchange === "pipelined" ? "in the same task" : HOW[input.ship_strategy] || "from its partition";
    put(
      this.edges,
      table(
        "Rows by edge",
        [
          { title: "From", cell: ({ input }) => this.view.operator(input.id) },
          { title: "To", cell: ({ node }) => this.view.operator(node.id) },
          { title: "How", cell: how },
          { title: "Rows, last epoch", number: true, cell: ({ input }) => count(input["last-records"]) },
          { title: "Bytes, last epoch", number: true, cell: ({ input }) => bytes(input["last-bytes"]) },
          { title: "Rows, total", number: true, cell: ({ input }) => count(input.records) },
          { title: "Bytes, total", number: true, cell: ({ input }) => bytes(input.bytes) },
        ],
        edges,
        "No edge yet.",
      ),
    );
  }

  showSubtasks(vertex) {
    const rows = [...vertex.subtasks].sort((a, b) => b.metrics["accumulated-busy-time"] - a.metrics["accumulated-busy-time"]);
    const shown = this.all ? rows : rows.slice(0, MOST_ROWS);
    const more = rows.length - shown.length;
    const even = (skew) => (skew ? `${skew} × the mean` : NONE);
    put(
      this.subtasks,
      card(
        ["Subtasks of ", this.view.operator(vertex.id)],
        h("p", { class: "note" }, counting(vertex, this.view.details)),
        facts([
          ["Subtasks", count(vertex.subtasks.length), vertex.maxParallelism ? `at most ${count(vertex.maxParallelism)}` : "as many as tasks"],
          ["Fullest subtask", even(vertex.skew["read-records"]), "by rows"],
          ["Busiest subtask", even(vertex.skew["busy-time"]), "by time"],
          ["State", bytes(vertex["state-bytes"])],
          ["Watermark", moment(vertex.watermark)],
          ...(vertex.sink ? committed(vertex.sink) : []),
        ]),
        h("div", { class: "bars-pair" },
          bars("Rows in, by subtask", vertex.subtasks, (one) => one.metrics["read-records"], count),
          bars("Busy time, by subtask", vertex.subtasks, (one) => one.metrics["accumulated-busy-time"], duration)),
        table(
          "Subtasks, the busiest first",
          [
            { title: "Subtask", number: true, cell: (one) => count(one.subtask) },
            { title: "Rows in", number: true, cell: (one) => count(one.metrics["read-records"]) },
            { title: "Rows out", number: true, cell: (one) => count(one.metrics["write-records"]) },
            { title: "Bytes in", number: true, cell: (one) => bytes(one.metrics["read-bytes"]) },
            { title: "Busy", number: true, cell: (one) => duration(one.metrics["accumulated-busy-time"]) },
            { title: "Saving state", number: true, cell: (one) => duration(one["saving-time"]) },
            { title: "Busy, last epoch", number: true, cell: (one) => duration(one["last-epoch"]["busy-time"]) },
            ...(vertex["real-time"] ? LIVE : []),
          ],
          shown,
        ),
        more > 0
          ? h("button", { type: "button", class: "quiet", onclick: () => { this.all = true; this.showSubtasks(vertex); } }, `Show ${count(more)} more`)
          : null,
      ),
    );
  }

  close() {
    this.watcher.disconnect();
    this.times.close();
  }
}

// Since when the numbers of subtasks count: a rescale makes new ones, and those of the operator go on.
function counting(vertex, job) {
  const since = vertex["subtasks-since"];
  if (since === job["start-time"]) return "";
  return `Rescaled at ${moment(since)}: its subtasks count from then on. With those before, the operator has read `
    + `${many(vertex.metrics["read-records"], "row")} and emitted ${many(vertex.metrics["write-records"], "row")}.`;
}

// The times of the least idle subtask of a real-time operator.
function load(live) {
  const [busy, waits] = [live.busy, live["back-pressured"]];
  return [
    h("span", { class: "bar load", title: "the least idle subtask in the last second: busy, then back-pressured" },
      h("span", { style: { width: ofTime(busy) } }), h("span", { class: "waits", style: { width: ofTime(waits) } })),
    h("span", { class: "numbers sides" },
      h("span", null, `busy ${ofTime(busy)}`),
      waits >= 10 ? h("span", { class: waits >= 500 ? "warn" : null, title: "back-pressured: the next level takes no more" }, `waits ${ofTime(waits)}`) : null),
  ];
}

const inSecond = (title, form, name) => ({
  title,
  number: true,
  cell: ({ "real-time": live }) => (live ? form(live[name]) : NONE),
});

const LIVE = [
  inSecond("Rows/s in", brief, "read-records"),
  inSecond("Busy now", ofTime, "busy"),
  inSecond("Back-pressured", ofTime, "back-pressured"),
  inSecond("Idle", ofTime, "idle"),
  inSecond("Alignment", duration, "alignment-time"),
  inSecond("Snapshot", duration, "sync-time"),
];

// What a sink has made visible, and what it has not yet.
function committed(sink) {
  const epoch = sink["last-epoch"];
  return [
    ["Committed", many(sink["committed-records"], "row"), sink["committed-bytes"] ? bytes(sink["committed-bytes"]) : "since this process runs it"],
    ["Last commit", epoch === null ? NONE : duration(sink["last-commit-time"]), epoch === null ? "nothing yet" : `of epoch ${count(epoch)}`],
    ["Commits took", duration(sink["commit-time"]), "in all, with those that failed"],
    ["Waits for its commit", many(sink["pending-records"], "row"), sink.lag ? `the oldest for ${duration(sink.lag)}` : "nothing is late"],
  ];
}

// One bar for each subtask, in their order; a thousand of them are a skyline.
function bars(title, subtasks, of, form) {
  const values = subtasks.map(of);
  const most = Math.max(...values, 0);
  const mean = values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0;
  const wide = 100 / Math.max(1, values.length);
  return h(
    "figure",
    { class: "bars" },
    h("figcaption", null, h("strong", null, title), h("span", { class: "note" }, `most ${form(most)}, mean ${form(mean)}`)),
    svg(
      "svg",
      { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: most ${form(most)}, mean ${form(mean)}` },
      values.map((value, at) => {
        const tall = most ? Math.max(0.4, (28 * value) / most) : 0.4;
        return svg("rect", { x: at * wide + wide * 0.1, y: 30 - tall, width: wide * 0.8, height: tall, class: mean && value >= 2 * mean ? "hot" : null });
      }),
    ),
  );
}
