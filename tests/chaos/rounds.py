"""Rounds of chaos: pay, strike, mend, and see that everything paid is shown once and rightly."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tests.chaos.bank import ROWS, Auditor, Bank
from tests.chaos.documents import DocumentAuditor
from tests.chaos.faults import strike
from tests.chaos.site import Site, a_site
from tests.programs.chaos_job import DISORDER

PATIENCE: Final = 600.0
"""Seconds in which a job must have recovered, also on a machine that has much else to do."""


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
    """

    kind: str
    seed: int
    rounds: int = 0
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    payments: int = 0
    starts: int = 0

    def __str__(self) -> str:
        faults = "\n".join(f"| {fault} | {member} | {times} |" for (fault, member), times in sorted(self.met.items()))
        return (
            f"{self.kind}, seed {self.seed}: {self.rounds} rounds, {self.payments:,} payments shown once and rightly, "
            f"{self.starts} starts of drivers; everything was shown {median(self.seconds):.1f} s after the mending in "
            f"the median, {max(self.seconds):.1f} s at most.\n\n"
            f"| fault | member | times |\n| --- | --- | ---: |\n{faults}"
        )


def run_rounds(kind: str, rounds: int, seed: int, directory: Path) -> Report:
    """Run rounds of chaos with one job.

    Args:
        kind: The type of high availability.
        rounds: How many.
        seed: Decides which fault strikes whom, and when.
        directory: An empty directory.

    Raises:
        AssertionError: The output is wrong, or the job did not recover.
    """
    report = Report(kind, seed)
    chance = random.Random(seed)
    with a_site(kind, directory) as site:
        bank = Bank(site.inputs, seed)
        auditor = Auditor(bank, site.disk)
        documents = DocumentAuditor(bank, site.disk / "checkpoints", site.options)
        bank.pay()
        _wait(site, auditor, lambda: auditor.look() == len(bank.expected), "the job to begin")
        while report.rounds < rounds:
            if _one(site, bank, auditor, chance, report):
                documents.look()
        for _ in range(DISORDER // ROWS + 4):
            bank.pay()
        _wait(site, auditor, lambda: auditor.look() == len(bank.expected), "the job to show everything")
        auditor.judge()
        documents.look()
        report.payments = len(auditor.entries)
        report.starts = sum(driver.starts for driver in site.drivers)
    return report


def _one(site: Site, bank: Bank, auditor: Auditor, chance: random.Random, report: Report) -> bool:
    bank.pay()
    if chance.random() < 0.2:
        bank.add_rule()
    _go_on(site, auditor, chance.uniform(0, 3))
    struck = strike(site, chance)
    if struck is None:
        return False
    try:
        _go_on(site, auditor, struck.seconds / 2)
        bank.pay()
        _go_on(site, auditor, struck.seconds / 2)
    finally:
        struck.mend()
    began = time.monotonic()
    what = f"everything after round {report.rounds}: {struck.member} {struck.fault}"
    _wait(site, auditor, lambda: auditor.look() == len(bank.expected), what)
    report.seconds.append(time.monotonic() - began)
    report.rounds += 1
    report.met[struck.fault, struck.member] += 1
    print(
        f"round {report.rounds}: {struck.member} {struck.fault}, {report.seconds[-1]:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return True


def _go_on(site: Site, auditor: Auditor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        site.supervise()
        auditor.look()
        time.sleep(0.1)


def _wait(site: Site, auditor: Auditor, has_come: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not has_come():
        site.supervise()
        if time.monotonic() > deadline:
            logs = "\n".join(f"{driver.log}:\n{driver.log.read_text()[-6000:]}" for driver in site.drivers)
            raise AssertionError(f"waited {PATIENCE:g} s for {what}; {len(auditor.entries)} are shown.\n{logs}")
        time.sleep(0.1)
