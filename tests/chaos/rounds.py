"""Rounds of chaos: send payments, inject a fault, end it, and check that each payment is in the output exactly once."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from holdfast.queryable import QueryableStateClient
from tests.chaos.bank import ROWS, Auditor, Bank
from tests.chaos.documents import DocumentAuditor
from tests.chaos.faults import Faults
from tests.chaos.replica import ReplicaAuditor
from tests.chaos.site import EPOCHS, Site, a_site
from tests.chaos.watch import Watch
from tests.programs.chaos_job import DISORDER

_HEAD: Final = """\
| kind | engine | seed | rounds | payments | starts of drivers | checkpoints read | \
answers of the replica | files at most | seconds until the output was complete, median | at most |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""

PATIENCE: Final = 600.0
"""Seconds in which a job must have recovered, also on a machine that has much else to do."""
_UNDER_WAY: Final = 0.3


@dataclass
class Report:
    """What the rounds have met.

    Attributes:
        kind: The type of high availability.
        seed: Decided about everything.
        rounds: How many there were.
        met: How often each fault met each member.
        seconds: How long it took after each mending until everything was shown.
        payments: How many were shown in the end.
        starts: How often a driver was started.
        checkpoints: How many were read, whole.
        answers: How many the replica gave, each with all state of one checkpoint.
        most_files: That the job kept at one time.
        left_out: The faults that could not strike, and why.
        engine: How the job ran. Lines of before there was another one have none.
    """

    kind: str
    seed: int
    rounds: int = 0
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    payments: int = 0
    starts: int = 0
    checkpoints: int = 0
    answers: int = 0
    most_files: int = 0
    left_out: list[str] = field(default_factory=list)
    engine: str = EPOCHS

    def __str__(self) -> str:
        return (
            f"{self.name}, seed {self.seed}: {self.rounds} rounds, {self.payments:,} payments, each correct and once; "
            f"the output was complete {median(self._seconds):.1f} s after the end of a fault in the median, "
            f"{max(self._seconds):.1f} s at most{''.join(f'; {why}' for why in self.left_out)}"
        )

    @property
    def name(self) -> str:
        """Its kind, and its engine if that is not epochs."""
        return self.kind if self.engine == EPOCHS else f"{self.kind} in {self.engine}"

    @property
    def row(self) -> str:
        """Its line in the table of runs."""
        counted = (self.rounds, self.payments, self.starts, self.checkpoints, self.answers, self.most_files)
        counts = " | ".join(f"{count:,}" for count in counted)
        seconds = f"{median(self._seconds):.1f} | {max(self._seconds):.1f}"
        return f"| {self.kind} | {self.engine} | {self.seed} | {counts} | {seconds} |"

    def to_json(self) -> str:
        """All of it, on one line."""
        met = [[fault, member, times] for (fault, member), times in sorted(self.met.items())]
        return json.dumps({**vars(self), "met": met})

    @classmethod
    def from_json(cls, line: str) -> Report:
        """What `to_json` wrote."""
        fields = json.loads(line)
        met = Counter({(fault, member): times for fault, member, times in fields["met"]})
        return cls(**{**fields, "met": met})

    @property
    def _seconds(self) -> list[float]:
        return self.seconds or [0.0]  # on a slow machine no round may have begun in time


def tables(reports: Sequence[Report]) -> str:
    """What runs have met, as benchmarks/results/chaos.md has it: a line for each, and the faults by kind and engine."""
    names = list(dict.fromkeys(report.name for report in reports))
    rounds = {name: sum(report.rounds for report in reports if report.name == name) for name in names}
    met = {name: sum((report.met for report in reports if report.name == name), Counter()) for name in names}
    faults = sorted({fault for counts in met.values() for fault in counts})
    return "\n".join(
        [
            _HEAD,
            *(report.row for report in reports),
            "",
            f"Rounds: {sum(rounds.values())} ({', '.join(f'{name} {count}' for name, count in rounds.items())}).",
            "",
            f"| fault | member | {' | '.join(names)} |",
            f"| --- | --- |{' ---: |' * len(names)}",
            *(f"| {' | '.join(fault)} | {' | '.join(str(met[name][fault]) for name in names)} |" for fault in faults),
            *(f"\n{report.name}, seed {report.seed}: {why}." for report in reports for why in report.left_out),
        ]
    )


@dataclass(frozen=True)
class Scene:
    """A site, what its job is fed, and all who look at it."""

    site: Site
    bank: Bank
    output: Auditor
    documents: DocumentAuditor
    replica: ReplicaAuditor
    watch: Watch

    def go_on(self, seconds: float) -> None:
        """Let some time go by."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._step()

    def wait(self, what: str) -> None:
        """Wait until everything paid is shown, in the output and by the replica, and read the checkpoints again."""
        deadline = time.monotonic() + PATIENCE
        while not self._has_come():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{log}:\n{log.read_text()[-6000:]}" for log in self.site.logs)
                shown = f"{len(self.output.entries)} are shown, {self.replica.position} by the replica"
                raise AssertionError(f"waited {PATIENCE:g} s for {what}; {shown}.\n{logs}")
            self._step()

    def _has_come(self) -> bool:
        paid = len(self.bank.expected)
        return self.output.look() == paid and self.replica.position == paid and self.documents.look(again=True)

    def _step(self) -> None:
        self.site.supervise()
        self.output.look()
        self.watch.require_well()
        time.sleep(0.1)


def run_rounds(
    kind: str, rounds: int, seed: int, directory: Path, minutes: float = math.inf, engine: str = EPOCHS
) -> Report:
    """Run rounds of chaos with one job.

    Args:
        kind: The type of high availability.
        rounds: How many.
        seed: Decides which fault strikes whom, and when.
        directory: An empty directory.
        minutes: After how many no round begins.
        engine: How the job runs.

    Raises:
        AssertionError: The output is wrong, or the job did not recover.
    """
    report = Report(kind, seed, engine=engine)
    chance = random.Random(seed)
    end = time.monotonic() + minutes * 60
    with a_site(kind, directory, engine) as site, ExitStack() as stack:
        report.kind, report.left_out = f"{kind}, real" if site.is_real else kind, site.left_out
        for why in site.left_out:
            print(f"left out: {why}", file=sys.stderr, flush=True)
        faults = Faults(site, chance)
        bank = Bank(site.inputs, seed)
        output = Auditor(bank, site.disk)
        documents = stack.enter_context(closing(DocumentAuditor(bank, output, site.disk, site.options)))
        client = QueryableStateClient("127.0.0.1", site.replica.port)
        replica = stack.enter_context(closing(ReplicaAuditor(bank, client, documents.positions)))
        watch = stack.enter_context(closing(Watch(documents.look, replica.look)))
        scene = Scene(site, bank, output, documents, replica, watch)
        bank.pay()
        scene.wait("the job to begin")
        while report.rounds < rounds and time.monotonic() < end:
            _one(scene, faults, chance, report)
        for _ in range(DISORDER // ROWS + 4):
            bank.pay()
        scene.wait("the job to show everything")
        output.judge()
        assert documents.position == (len(bank.expected), bank.rules)
        report.payments = len(output.entries)
        report.starts = sum(driver.starts for driver in site.drivers)
        report.checkpoints, report.answers = len(documents.positions), replica.answers
        report.most_files = documents.most_files
    return report


def _one(scene: Scene, faults: Faults, chance: random.Random, report: Report) -> None:
    scene.bank.pay()
    if chance.random() < 0.2:
        scene.bank.add_rule()
    scene.go_on(chance.uniform(0, 3))
    if scene.site.is_real_time:  # let the fault strike while records are under way
        scene.bank.pay()
        time.sleep(chance.uniform(0, _UNDER_WAY))
    struck = faults.strike()
    if struck is None:
        return
    try:
        scene.go_on(struck.seconds / 2)
        scene.bank.pay()
        scene.go_on(struck.seconds / 2)
    finally:
        struck.mend()
    began = time.monotonic()
    scene.wait(f"everything after round {report.rounds}: {struck.member} {struck.fault}")
    report.seconds.append(time.monotonic() - began)
    report.rounds += 1
    report.met[struck.fault, struck.member] += 1
    print(
        f"round {report.rounds}: {struck.member} {struck.fault}, {report.seconds[-1]:.1f} s",
        file=sys.stderr,
        flush=True,
    )
