// Questions that have to be answered before anything happens, and what is told afterwards.

import { h } from "/page/dom.js";

const told = () => document.getElementById("told");

export function tell(message, kind = "good") {
  const close = h("button", { type: "button", class: "close", "aria-label": "Dismiss", onclick: () => line.remove() }, "×");
  const line = h("div", { class: `line ${kind}` }, h("span", null, message), close);
  told().append(line);
  if (kind === "good") setTimeout(() => line.remove(), 12000);
  while (told().childElementCount > 4) told().firstElementChild.remove();
  return line;
}

// Asks, and resolves to the values of the fields, or to null if nothing is to happen. Escape and Back mean no.
// With `act` it stays open until that has succeeded: what was entered stays if it fails. After Back the act goes on.
export function ask({ title, text, fields = [], yes, danger = false, check, must = false, act = null, waiting = "" }) {
  return new Promise((resolve) => {
    const inputs = new Map();
    const problem = h("p", { class: "problem", role: "alert" });
    const progress = h("p", { class: "note", role: "status" });
    const rows = fields.map((field) => {
      const id = `field-${field.name}`;
      const input =
        field.kind === "check"
          ? h("input", { type: "checkbox", id, checked: field.value })
          : h("input", {
              type: field.kind || "text", id, value: field.value ?? "", placeholder: field.hint, min: field.min, max: field.max,
              autocomplete: "off", spellcheck: "false", required: field.required, "aria-describedby": field.note ? `${id}-note` : null,
            });
      inputs.set(field.name, input);
      const label = h("label", { for: id }, field.label);
      const note = field.note ? h("p", { class: "note", id: `${id}-note` }, field.note) : null;
      return h("div", { class: `field ${field.kind || "text"}` }, field.kind === "check" ? [input, label] : [label, input], note);
    });
    const done = (value) => {
      if (!dialog.isConnected) return;
      dialog.close();
      dialog.remove();
      if (before && before.isConnected) before.focus();
      resolve(value);
    };
    const perform = async (values) => {
      ok.disabled = true;
      problem.textContent = "";
      progress.textContent = waiting;
      try {
        tell(await act(values));
        done(values);
      } catch (error) {
        if (dialog.isConnected) problem.textContent = error.message;
        else tell(error.message, "bad");
      }
      ok.disabled = false;
      progress.textContent = "";
    };
    const submit = (event) => {
      event.preventDefault();
      const values = {};
      for (const [name, input] of inputs) values[name] = input.type === "checkbox" ? input.checked : input.value.trim();
      const wrong = check && check(values);
      if (wrong) problem.textContent = wrong;
      else if (act) perform(values);
      else done(values);
    };
    const no = must ? null : h("button", { type: "button", class: "quiet", onclick: () => done(null) }, "Back");
    const ok = h("button", { type: "submit", class: danger ? "danger" : "main" }, yes);
    const before = document.activeElement;
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" },
      h(
        "form",
        { onsubmit: submit, novalidate: true },
        h("h2", { id: "dialog-title" }, title),
        h("p", { id: "dialog-text" }, text),
        rows,
        problem,
        progress,
        h("div", { class: "row end" }, no, ok),
      ),
    );
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      if (!must) done(null);
    });
    document.body.append(dialog);
    dialog.showModal();
    // A dangerous question does not have its answer under the Enter key.
    const first = dialog.querySelector("input:not([type=checkbox])") || (danger && no) || dialog.querySelector("button[type=submit]");
    first.focus();
    if (first.select) first.select();
  });
}
