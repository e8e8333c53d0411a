// The options of the job; secrets are hidden by the server.

import { get } from "/page/api.js";
import { card, facts, h, put, table } from "/page/dom.js";
import { count, duration, many } from "/page/format.js";

export class ConfigurationTab {
  constructor(view) {
    this.view = view;
    this.text = h("input", { type: "search", id: "options-filter", placeholder: "Name or value", oninput: () => this.show() });
    this.facts = h("div");
    this.list = h("div");
    this.element = h(
      "div",
      null,
      this.facts,
      card("Options", h("div", { class: "row filters" }, h("label", { for: "options-filter" }, "Filter"), this.text), this.list),
    );
    this.options = [];
  }

  async refresh() {
    const [config, checkpoints] = await Promise.all([get(`${this.view.path}/config`), get(`${this.view.path}/checkpoints/config`)]);
    const own = config["execution-config"];
    this.options = Object.entries(own["user-config"]).sort(([a], [b]) => a.localeCompare(b));
    put(
      this.facts,
      facts([
        ["Default parallelism", count(own["job-parallelism"])],
        ["Checkpoints", checkpoints.interval > 0 && checkpoints.interval < 2 ** 53 ? `every ${duration(checkpoints.interval)}` : "every epoch", checkpoints.mode.replaceAll("_", " ")],
        ["Timeout", duration(checkpoints.timeout), `${many(checkpoints.tolerable_failed_checkpoints, "failure")} tolerated`],
        ["State backend", checkpoints.state_backend, `${checkpoints.checkpoint_storage} storage`],
        ["Job id", h("code", null, config.jid)],
      ]),
    );
    this.show();
    this.hasData = true;
  }

  show() {
    const wanted = this.text.value.trim().toLowerCase();
    put(
      this.list,
      table(
        "Options",
        [
          { title: "Option", cell: ([name]) => h("code", null, name) },
          { title: "Value", class: "value", cell: ([, value]) => h("code", null, value) },
        ],
        this.options
          .filter(([name, value]) => !wanted || name.toLowerCase().includes(wanted) || String(value).toLowerCase().includes(wanted))
          .map((of) => ({ of })),
        this.options.length ? "No option is like this." : "Every option has its default.",
      ),
    );
  }

  close() {}
}
