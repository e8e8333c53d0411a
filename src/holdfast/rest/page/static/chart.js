// Charts over time, drawn by uPlot in the colours of the page.

import uPlot from "/page/uPlot.js";
import { h } from "/page/dom.js";
import { bytes, clock, duration, moment, NONE } from "/page/format.js";

// Steps between the labels of an axis, so that labels are round numbers in their unit.
const [SECOND, MINUTE, HOUR, DAY] = [1000, 60_000, 3_600_000, 86_400_000];
const STEPS = new Map([
  [bytes, Array.from({ length: 51 }, (_, power) => 2 ** power)],
  [duration, [
    ...[0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500],
    ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * SECOND),
    ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
    ...[1, 2, 4, 6, 12].map((hours) => hours * HOUR),
    ...[1, 2, 5].flatMap((days) => [1, 10, 100, 1000, 10_000].map((ten) => days * ten * DAY)).sort((a, b) => a - b),
  ]],
]);
// Clock times show no parts of a second.
const CLOCK_STEPS = STEPS.get(duration).filter((step) => step >= SECOND).map((step) => step / SECOND);
const SHORTEST = 10; // seconds of a chart
const LABELS = 64;

// From the first time to the last. uPlot would show a day for one time, and times without a label for less than a second.
function span(times) {
  const last = times[times.length - 1];
  return times.length ? [Math.min(times[0], last - SHORTEST), last] : [null, null];
}

// The width of the labels of an axis. uPlot asks again until the answer stays the same, so the second one is final.
function labelWidth(plot, labels, at, cycle) {
  const axis = plot.axes[at];
  if (cycle > 1) return axis._size;
  [plot.ctx.font] = axis.font;
  const widths = (labels ?? []).map((label) => plot.ctx.measureText(label).width / devicePixelRatio);
  return Math.ceil(Math.max(LABELS, ...widths.map((width) => width + axis.ticks.size + axis.gap)));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The legend shows the values under the pointer, and without a pointer the newest ones. Of a layer that stands on others
// it shows the layer's own height, not where it ends.
function shown(plot, one, at, index, form) {
  const values = one.own ? one.own() : plot.data[at];
  const value = values[index ?? values.length - 1];
  return value === null || value === undefined ? NONE : form(value);
}

function options(width, height, series, form) {
  const line = { stroke: colour("--faint"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return {
    width,
    height,
    cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false, y: false } },
    // A time at the right edge has half of its label there.
    padding: [null, 28, null, null],
    legend: { show: true, live: true },
    scales: {
      x: { time: true, range: (plot) => span(plot.data[0]) },
      y: { range: (_, least, most) => [Math.min(0, least ?? 0), (most || 1) * 1.08] },
    },
    axes: [
      { ...line, font, size: 28, space: 70, incrs: CLOCK_STEPS, values: (_, ticks) => ticks.map((tick) => clock(tick * 1000)) },
      { ...line, font, size: labelWidth, space: 34, incrs: STEPS.get(form), values: (_, ticks) => ticks.map((tick) => form(tick)) },
    ],
    series: [
      { label: "time", value: (plot, _, at, index) => shown(plot, {}, at, index, (seconds) => moment(seconds * 1000)) },
      ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        width: one.solid ? 0 : one.filled ? 1.25 : 1.75,
        fill: one.solid ? colour(one.colour) : one.filled ? `${colour(one.colour)}33` : undefined,
        points: { show: (plot) => plot.data[0].length === 1 },
        value: (plot, _, at, index) => shown(plot, one, at, index, form),
      })),
    ],
  };
}

export class Chart {
  constructor(title, series, form, note) {
    this.series = series;
    this.form = form;
    this.place = h("div", { class: "plot" });
    this.summary = h("p", { class: "unseen" });
    this.element = h(
      "figure",
      { class: "chart", "data-own": `chart ${title}`, role: "group", "aria-label": title },
      h("figcaption", null, h("strong", null, title), note ? h("span", { class: "note" }, note) : null),
      this.place,
      this.summary,
    );
    this.plot = null;
    this.data = null;
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.again = () => this.redraw();
    this.scheme.addEventListener("change", this.again);
  }

  // data: times in seconds, then one array for each series; `said` is the same in a sentence, for those who do not see it.
  show(data, said) {
    this.data = data;
    this.summary.textContent = said;
    if (this.plot) this.plot.setData(data);
    else this.redraw();
  }

  redraw() {
    if (!this.data) return;
    const width = this.place.clientWidth;
    if (!width) return;
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(options(width, 180, this.series, this.form), this.data, this.place);
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width) return;
    if (this.plot) this.plot.setSize({ width, height: 180 });
    else this.redraw();
  }

  close() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.again);
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }
}
