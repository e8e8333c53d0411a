// What can be done with a job. Each asks back first, and says afterwards what became of it.

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

// Keeps people informed while something takes its time, and whatever it ends with.
async function follow(view, waiting, work) {
  const line = tell(waiting, "wait");
  try {
    tell(await work());
  } catch (error) {
    tell(error.message, "bad");
  } finally {
    line.remove();
    view.refreshSoon();
  }
}

async function savepoint(view) {
  const values = await ask({
    title: "Take a savepoint?",
    text: `Job ${view.name} goes on. A savepoint is a copy of its state that belongs to you.`,
    fields: [TARGET],
    yes: "Take a savepoint",
  });
  if (!values) return;
  await follow(view, "Taking a savepoint …", async () => {
    const done = await operate(`${view.path}/savepoints`, target(values));
    return `Savepoint: ${done.location}`;
  });
}

async function stop(view) {
  const values = await ask({
    title: "Stop the job?",
    text: `Job ${view.name} ends with a savepoint, from which it can be started again.`,
    fields: [TARGET, { name: "drain", label: "Drain: event time goes to its end, and all windows fire", kind: "check" }],
    yes: "Stop with a savepoint",
    danger: true,
  });
  if (!values) return;
  await follow(view, "Stopping with a savepoint …", async () => {
    const directory = values.directory ? { targetDirectory: values.directory } : {};
    const done = await operate(`${view.path}/stop`, { ...directory, drain: values.drain });
    return `Stopped. Savepoint: ${done.location}`;
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
  const values = await ask({
    title: "Rescale the job?",
    text: "From the next epoch on the operators have so many subtasks. Nothing is restarted.",
    fields: names.map((uid, at) => ({
      name: `parallelism-${at}`,
      label: uid,
      kind: "number",
      min: 1,
      max: most[uid] || null,
      value: now[uid].parallelism.upperBound,
      note: most[uid] ? `1 to ${most[uid]}` : null,
    })),
    yes: "Rescale",
    check: (given) => {
      const wrong = names.find((uid, at) => !/^[1-9][0-9]*$/.test(given[`parallelism-${at}`]));
      return wrong ? `${wrong}: a whole number of at least 1.` : null;
    },
  });
  if (!values) return;
  const wanted = names
    .map((uid, at) => [uid, Number(values[`parallelism-${at}`])])
    .filter(([uid, number]) => number !== now[uid].parallelism.upperBound);
  if (!wanted.length) return;
  await follow(view, "Rescaling at the next epoch …", async () => {
    const body = Object.fromEntries(wanted.map(([uid, number]) => [uid, { parallelism: { upperBound: number } }]));
    await send("PUT", `${view.path}/resource-requirements`, body);
    return `Rescaled: ${wanted.map(([uid, number]) => `${uid} to ${number}`).join(", ")}`;
  });
}

async function cancel(view) {
  const values = await ask({
    title: "Cancel the job?",
    text: `Job ${view.name} ends for good, without a savepoint. What it has checkpointed is kept unless an option says otherwise.`,
    yes: "Cancel the job",
    danger: true,
  });
  if (!values) return;
  await follow(view, "Cancelling …", async () => {
    await send("PATCH", `${view.path}?mode=cancel`);
    return "The job is being cancelled.";
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
