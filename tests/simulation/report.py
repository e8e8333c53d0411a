"""Tables of the calls, faults and events in many histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.simulation.simulate import History

_CALLS = (
    ("crash before", "crash before"),
    ("crash after", "crash after"),
    ("crash before a late arrival", "crash, takes effect later"),
    ("error", "fails"),
    ("read error", "fails"),
    ("disk full", "disk full"),
    ("lost answer", "response lost"),
    ("late", "takes effect later"),
    ("repeated", "sent twice"),
    ("power failure", "power failure"),
    ("pause", "process stops"),
    ("clock jump", "clock jumps"),
)

_EVENTS = {
    "a replica could not read: replica": "a replica fails to read a checkpoint",
    "another attempt's rows: task": "a task reads another attempt of the stage before",
    "answer lost: task": "the report of a task is lost",
    "answer twice: task": "the report of a task arrives twice",
    "asked: checkpoint": "a client requests a checkpoint",
    "asked: grant leadership to all": "leadership is granted to all processes",
    "asked: kill a process wherever it waits": "a process is killed while it waits",
    "asked: nothing": "nothing, in the place of a request",
    "asked: rescale": "a client requests another parallelism",
    "asked: revoke leadership": "leadership is revoked",
    "asked: savepoint": "a client requests a savepoint",
    "asked: stop with savepoint": "a client requests a stop with savepoint",
    "begins while another one is under way: checkpoint": "a checkpoint begins while another one is under way",
    "begun: compaction": "a compaction begins",
    "comes late: connection": "a connection is established late",
    "comes late: control message": "a control message arrives late",
    "comes late: failure of a task": "the driver learns late of the failure of a task",
    "comes late: frame": "a frame arrives late",
    "comes twice: frame": "a frame arrives twice",
    "compaction failed: compaction": "a compaction fails",
    "compacts on after its driver has gone: compaction": "the compaction process continues after the end of its driver",
    "compared with the dict: replica": "the state of a replica is compared with the model",
    "cut: connection": "a connection is cut",
    "falls silent: connection": "a connection loses all that follows",
    "dies between two frames: task": "a task dies between two frames",
    "goes on after its group has ended: task": "a task continues after the end of its job",
    "has more runs for one key group than it may: checkpoint": "a checkpoint exceeds the limit of run files",
    "late arrival": "a call takes effect late",
    "lost: frame": "a frame is lost",
    "new worker process: task": "a task starts in a new worker process",
    "not read: task": "a task does not read an input",
    "of an old attempt: frame": "a frame of an old attempt arrives",
    "outage: process": "an outage of a process begins",
    "output taken: consumer": "a consumer takes output",
    "read twice: task": "a task reads an input twice",
    "second attempt: stage": "a stage has a second attempt",
    "second attempt: task": "a task has a second attempt",
    "slow target: sink": "a sink waits for its target",
    "the output of the one before is named again: checkpoint": "a checkpoint names output of the one before again",
    "the weather is good: world": "all faults stop, and the history ends",
}
"""Plain words for events of the simulated world, by their name there."""


@dataclass
class Totals:
    """What was met in some histories.

    Attributes:
        histories: How many there were.
        steps: Calls of the simulated system in them.
        met: How often each fault was met, at which call and kind of file.
        failures: What failed, by seed.
    """

    histories: int = 0
    steps: int = 0
    met: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, history: History) -> None:
        """One more."""
        self.histories += 1
        self.steps += history.steps
        self.met += history.met
        if history.failure is not None:
            self.failures[history.seed] = history.failure

    def plus(self, other: Totals) -> Totals:
        """Those of both."""
        return Totals(
            self.histories + other.histories,
            self.steps + other.steps,
            self.met + other.met,
            {**self.failures, **other.failures},
        )


def table(totals: Totals) -> str:
    """The faults and crash points, as Markdown: a row a call, a column a fault."""
    columns = list(dict.fromkeys(name for _, name in _CALLS))
    rows: dict[str, Counter[str]] = {}
    others: Counter[str] = Counter()
    names = dict(_CALLS)
    for what, count in totals.met.items():
        fault, _, call = what.partition(": ")
        if fault in names:
            rows.setdefault(call, Counter())[names[fault]] += count
        else:
            others[what] += count
    lines = [
        f"{totals.histories:,} seeds, {totals.steps:,} calls, {len(totals.failures)} failures.",
        "",
        *_markdown(["call", *columns], ([call, *(rows[call][name] for name in columns)] for call in sorted(rows))),
        "",
        *_markdown(["other events", "times"], ([_EVENTS.get(what, what), others[what]] for what in sorted(others))),
    ]
    return "\n".join(lines)


def seeds_needed(found: Mapping[str, int | None], descriptions: Mapping[str, str]) -> str:
    """The bugs, each with the number of seeds that it took, as Markdown."""
    rows = ([name, descriptions[name], "not found" if seeds is None else seeds] for name, seeds in found.items())
    return "\n".join(_markdown(["bug", "what it does", "seeds"], rows, texts=2))


def _markdown(head: list[str], rows: Iterable[list[object]], texts: int = 1) -> list[str]:
    lines = [head, [*["---"] * texts, *["---:"] * (len(head) - texts)], *rows]
    return [f"| {' | '.join(_shown(cell) for cell in line)} |" for line in lines]


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
