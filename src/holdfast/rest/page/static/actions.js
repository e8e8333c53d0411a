// What can be done with a job. Each asks back first, and reports afterwards what became of it.

import { get, operate, send } from "/page/api.js";
import { ask, tell } from "/page/dialog.js";
import { h } from "/page/dom.js";

const TARGET = {
  name: "directory",
  label: "Directory",
  hint: "the configured one",
  note: "An absolute path or a URI; empty for execution.checkpointing.savepoint-dir.",
};

function target(values) {
  return values.directory ? { "target-directory": values.directory } : {};
}

// Asks, and does it. The dialog stays open until it is done, so that an error leaves what was entered.
async function confirm(view, question) {
  await ask(question);
  view.refreshSoon();
}

async function savepoint(view) {
  await confirm(view, {
    title: "Take a savepoint?",
    text: `Job ${view.name} continues. You own the savepoint: the job never deletes it.`,
    fields: [TARGET],
    yes: "Take a savepoint",
    waiting: "Taking a savepoint …",
    act: async (values) => {
      const done = await operate(`${view.path}/savepoints`, target(values));
      return `Savepoint: ${done.location}`;
    },
  });
}

async function stop(view) {
  await confirm(view, {
    title: "Stop the job?",
    text: `Job ${view.name} ends with a savepoint, from which it can be started again.`,
    fields: [TARGET, { name: "drain", label: "Drain: event time goes to its end, and all windows fire", kind: "check" }],
    yes: "Stop with a savepoint",
    danger: true,
    waiting: "Stopping with a savepoint …",
    act: async (values) => {
      const directory = values.directory ? { targetDirectory: values.directory } : {};
      const done = await operate(`${view.path}/stop`, { ...directory, drain: values.drain });
      return `Stopped. Savepoint: ${done.location}`;
    },
  });
}

async function rescale(view) {
  const now = await get(`${view.path}/resource-requirements`);
  const names = Object.keys(now);
  if (!names.length) {
    tell("No operator has state, so there is nothing to rescale: Spark decides how many tasks run.", "bad");
    return;
  }
  const most = Object.fromEntries((view.details.vertices || []).map((vertex) => [vertex.id, vertex.maxParallelism]));
  await confirm(view, {
    title: "Rescale the job?",
    text: "The new numbers of subtasks apply from the next epoch on. A real-time job starts new tasks for them.",
    fields: names.map((uid, at) => ({
      name: `parallelism-${at}`,
      label: view.label(uid),
      kind: "number",
      min: 1,
      max: most[uid] || null,
      value: now[uid].parallelism.upperBound,
      note: most[uid] ? `1 to ${most[uid]}` : null,
    })),
    yes: "Rescale",
    check: (given) => {
      const wrong = names.find((uid, at) => !/^[1-9][0-9]*$/.test(given[`parallelism-${at}`]));
      return wrong ? `${view.label(wrong)}: enter a whole number of at least 1.` : null;
    },
    waiting: "Rescaling at the next epoch …",
    act: async (values) => {
      const wanted = names
        .map((uid, at) => [uid, Number(values[`parallelism-${at}`])])
        .filter(([uid, number]) => number !== now[uid].parallelism.upperBound);
      if (!wanted.length) return "Nothing to do: the operators have this parallelism.";
      const body = Object.fromEntries(wanted.map(([uid, number]) => [uid, { parallelism: { upperBound: number } }]));
      await send("PUT", `${view.path}/resource-requirements`, body);
      return `Rescaled: ${wanted.map(([uid, number]) => `${view.label(uid)} to ${number}`).join(", ")}`;
    },
  });
}

async function cancel(view) {
  await confirm(view, {
    title: "Cancel the job?",
    text: `Job ${view.name} ends for good, without a savepoint. Its checkpoints are kept unless execution.checkpointing.externalized-checkpoint-retention says otherwise.`,
    yes: "Cancel the job",
    danger: true,
    waiting: "Cancelling …",
    act: async () => {
      await send("PATCH", `${view.path}?mode=cancel`);
      return "The job is being cancelled.";
    },
  });
}

export function actions(view) {
  const off = view.isOver || view.details.state === "CANCELLING";
  const button = (name, title, act) =>
    h("button", { type: "button", class: name === "cancel" ? "danger quiet" : "quiet", id: `do-${name}`, disabled: off,
      onclick: () => act(view).catch((error) => tell(error.message, "bad")) }, title);
  return [
    button("savepoint", "Savepoint", savepoint),
    button("rescale", "Rescale", rescale),
    button("stop", "Stop", stop),
    button("cancel", "Cancel", cancel),
  ];
}
