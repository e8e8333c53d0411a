"""Fuzzes targets one after the other, and adds what was done to the table of all sessions, as it truly was.

    make fuzz SECONDS_EACH=60                        every target for a minute
    make fuzz SECONDS_EACH=3600 TARGETS="frame ledger"

Time is that of the processor, so a session beside other work counts for what it got. The table is written after each
target: a session that is interrupted has done what is in it.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.fuzz.targets import NAMES

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "benchmarks" / "results" / "fuzz.md"
BEGIN: Final = "<!-- totals -->\n"
END: Final = "<!-- /totals -->"
HEAD: Final = (
    "| target | runs | processor seconds | inputs | defects | last run |\n| --- | ---: | ---: | ---: | ---: | --- |\n"
)
_ROW: Final = re.compile(r"\| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([^|]*) \|")
_UNITS: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_SLACK: Final = 300


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


def added(page: str, name: str, run: Total) -> str:
    """The page with a run of a target in its table."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    found = [match.groups() for match in _ROW.finditer(table)]
    totals = {row[0]: Total(*(int(cell.replace(",", "")) for cell in row[1:5]), row[5]) for row in found}
    totals.pop("all", None)
    totals[name] = totals.get(name, Total()) + run
    rows = [_row(target, totals[target]) for target in sorted(totals)]
    whole = sum(totals.values(), Total())
    summary = Total(whole.runs, whole.seconds, whole.inputs, whole.defects, f"{len(totals)} targets")
    return f"{before}{BEGIN}{HEAD}{''.join(rows)}{_row('all', summary)}{END}{after}"


def _row(name: str, total: Total) -> str:
    numbers = (total.runs, total.seconds, total.inputs, total.defects)
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {total.last} |\n"


def run(name: str, seconds: int) -> Total:
    """Fuzz one target."""
    command = [sys.executable, "-m", "tests.fuzz.runner", name, f"-max_total_time={seconds}"]
    before = _processor_seconds()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=seconds + _SLACK)
        said, code = (done.stdout + done.stderr).decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as error:
        said, code = ((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace"), -1
    defects = [line for line in said.splitlines() if line.startswith("DEFECT")]
    if code:
        defects.append(f"DEFECT the process ended with {code}: {said[-2000:]}")
    for defect in defects:
        print(defect, flush=True)
    units = _UNITS.search(said)
    used = round(_processor_seconds() - before)
    return Total(1, used, int(units[1]) if units else 0, len(defects), f"{datetime.now(UTC):%Y-%m-%d}, {_commit()}")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()

    is_changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if is_changed else "")


def main() -> int:
    """Fuzz targets; returns 1 if something was found."""
    parser = argparse.ArgumentParser(description="Fuzz targets one after the other.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    given = parser.parse_args()
    unknown = set(given.targets) - set(NAMES)
    if unknown:
        parser.error(f"there is no target {sorted(unknown)}; there are {' '.join(NAMES)}")
    found = 0
    for name in given.targets or NAMES:
        total = run(name, given.seconds)
        TABLE.write_text(added(TABLE.read_text("utf-8"), name, total), "utf-8")
        print(f"{name}: {total.seconds} s, {total.inputs:,} inputs, {total.defects} defects", flush=True)
        found += total.defects
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
