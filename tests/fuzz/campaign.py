"""Fuzzes targets, and adds what was done to the table of all sessions, as it truly was.

    make fuzz SECONDS_EACH=60                        every target for a minute
    make fuzz SECONDS_EACH=3600 TARGETS="frame ledger"
    make fuzz MINUTES=40 BESIDE=2                    for 40 minutes, two at a time, a minute whichever kind of parser
                                                     has had least, and of that kind whoever has

Time is that of the processor, so a session beside other work counts for what it got. The table is written after each
target: a session that is interrupted has done what is in it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.fuzz.targets import KINDS, NAMES

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "benchmarks" / "results" / "fuzz.md"
BEGIN: Final = "<!-- totals -->\n"
END: Final = "<!-- /totals -->"
HEAD: Final = (
    "| target | runs | processor seconds | inputs | defects | last run |\n| --- | ---: | ---: | ---: | ---: | --- |\n"
)
_ROW: Final = re.compile(r"\| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([^|]*) \|")
_UNITS: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
OF_KINDS: Final = "| kind | targets | processor minutes | inputs | defects |\n| --- | --- | ---: | ---: | ---: |\n"
SLACK: Final = 300
"""Seconds after its time after which a run is killed."""
_SHORTEST: Final = 10


@dataclass(frozen=True)
class Total:
    """What was done about one target.

    Attributes:
        runs: So many times it was run.
        seconds: Of the processor.
        inputs: So many were tried.
        defects: So many were found: places in the code that raised what they should not, hangs, ends of the process.
        last: When, and at which commit.
    """

    runs: int = 0
    seconds: int = 0
    inputs: int = 0
    defects: int = 0
    last: str = ""

    def __add__(self, other: Total) -> Total:
        return Total(
            self.runs + other.runs,
            self.seconds + other.seconds,
            self.inputs + other.inputs,
            self.defects + other.defects,
            other.last or self.last,
        )


def totals_in(page: str) -> dict[str, Total]:
    """What was done, by target."""
    found = [match.groups() for match in _ROW.finditer(page.partition(BEGIN)[2].partition(END)[0])]
    return {
        row[0]: Total(*(int(cell.replace(",", "")) for cell in row[1:5]), row[5]) for row in found if row[0] != "all"
    }


def added(page: str, name: str, run: Total) -> str:
    """The page with a run of a target in its tables."""
    before, _, rest = page.partition(BEGIN)
    totals = totals_in(page)
    totals[name] = totals.get(name, Total()) + run
    rows = [_row(target, totals[target]) for target in sorted(totals)]
    whole = sum(totals.values(), Total())
    summary = Total(whole.runs, whole.seconds, whole.inputs, whole.defects, f"{len(totals)} targets")
    tables = f"{OF_KINDS}{_rows_of_kinds(totals)}\n{HEAD}{''.join(rows)}{_row('all', summary)}"
    return f"{before}{BEGIN}{tables}{END}{rest.partition(END)[2]}"


def _rows_of_kinds(totals: Mapping[str, Total]) -> str:
    rows = []
    for kind, names in KINDS.items():
        whole = sum((totals.get(name, Total()) for name in names), Total())
        rows.append(
            f"| {kind} | {', '.join(names)} | {whole.seconds / 60:,.1f} | {whole.inputs:,} | {whole.defects} |\n"
        )
    return "".join(rows)


def _row(name: str, total: Total) -> str:
    numbers = (total.runs, total.seconds, total.inputs, total.defects)
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {total.last} |\n"


def run(name: str, seconds: int) -> Total | None:
    """Fuzz one target; None if other work left it no processor to do it with, which says nothing about the target."""
    command = [sys.executable, "-m", "tests.fuzz.runner", name, f"-max_total_time={seconds}"]
    with tempfile.TemporaryFile() as output:
        ends = time.monotonic() + seconds + SLACK
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        hung = threading.Timer(seconds + SLACK, process.kill)
        hung.start()
        _, status, used = os.wait4(process.pid, 0)
        hung.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace")
    defects = [line for line in said.splitlines() if line.startswith("DEFECT")]
    taken = used.ru_utime + used.ru_stime
    was_late = process.returncode == -signal.SIGKILL and time.monotonic() >= ends  # and not killed for its memory
    if was_late and not defects and taken < seconds / 2:
        return None
    if process.returncode:
        defects.append(f"DEFECT the process ended with {process.returncode}: {said[-2000:]}")
    for defect in defects:
        print(defect, flush=True)
    units = _UNITS.search(said)
    last = f"{datetime.now(UTC):%Y-%m-%d}, {_commit()}"
    return Total(1, round(taken), int(units[1]) if units else 0, len(defects), last)


def campaign(names: Sequence[str], seconds: int, minutes: float | None = None, beside: int = 1) -> int:
    """Fuzz targets, kinds that have had least first; returns how many defects were found.

    Args:
        names: The targets.
        seconds: For each of them, at a time.
        minutes: How long to go on; None for each target once.
        beside: So many at one time.
    """
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    waiting, lock, defects = list(names), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                had = totals_in(TABLE.read_text("utf-8"))
                stretch = seconds if ends is None else min(seconds, round(ends - time.monotonic()))
                if not waiting or (ends is not None and stretch < _SHORTEST):
                    return
                name = _has_had_least(waiting, had)
                waiting.remove(name)
            total = run(name, stretch)
            with lock:
                if total is None:
                    print(f"{name}: other work left it no processor, so it is not counted", flush=True)
                else:
                    TABLE.write_text(added(TABLE.read_text("utf-8"), name, total), "utf-8")
                    print(f"{name}: {total.seconds} s, {total.inputs:,} inputs, {total.defects} defects", flush=True)
                    defects.append(total.defects)
                if ends is not None:
                    waiting.append(name)

    with ThreadPoolExecutor(beside) as pool:
        for worker in [pool.submit(work) for _ in range(beside)]:
            worker.result()
    return sum(defects)


def _has_had_least(waiting: Sequence[str], had: Mapping[str, Total]) -> str:
    """The one with least time of the kind with least: a kind of two parsers gets as much as one of nine."""

    def taken(name: str) -> tuple[int, int]:
        kind = next(names for names in KINDS.values() if name in names)
        return sum(had.get(one, Total()).seconds for one in kind), had.get(name, Total()).seconds

    return min(waiting, key=taken)


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()

    is_changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if is_changed else "")


def main() -> int:
    """Fuzz targets; returns 1 if something was found."""
    parser = argparse.ArgumentParser(description="Fuzz targets, kinds that have had least first.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target, at a time")
    parser.add_argument("--minutes", type=float, help="how long to go on; each target once if this is not given")
    parser.add_argument("--beside", type=int, default=1, help="so many at one time")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    given = parser.parse_args()
    unknown = set(given.targets) - set(NAMES)
    if unknown:
        parser.error(f"there is no target {sorted(unknown)}; there are {' '.join(NAMES)}")
    return int(campaign(given.targets or NAMES, given.seconds, given.minutes, given.beside) > 0)


if __name__ == "__main__":
    sys.exit(main())
