"""Prints which share of the lines tests have run, and the modules with most lines that none has.

    .venv/bin/python scripts/least_covered.py

It reads what `make coverage` has written. Code that runs in another process, such as that of Spark's
workers, counts only where tests run it in their own too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from coverage import Coverage

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "src" / "holdfast"
_SHOWN: Final = 10


def main(data: Path = ROOT / ".coverage", package: Path = PACKAGE) -> int:
    """Prints the table; without measurements it says so and returns 1."""
    measured = Coverage(data_file=str(data), config_file=False)
    measured.load()
    if not measured.get_data().measured_files():
        print("There are no measurements. Run `make coverage` first.", file=sys.stderr)
        return 1
    found = [_lines(measured, path) for path in sorted(package.rglob("*.py"))]
    lines, missed = sum(module.lines for module in found), sum(module.missed for module in found)
    print(f"Tests run {1 - missed / lines:.1%} of {lines:,} lines in their own processes. Most lines that none runs:")
    for module in sorted(found, key=lambda one: -one.missed)[:_SHOWN]:
        print(f"  {module.missed:4} of {module.lines:4} in {module.path.relative_to(package.parent)}")
    return 0


class _Lines(NamedTuple):
    """How many lines of a module have statements, and how many of them no test ran."""

    path: Path
    lines: int
    missed: int


def _lines(measured: Coverage, path: Path) -> _Lines:
    _, statements, _, missing, _ = measured.analysis2(str(path))
    return _Lines(path, len(statements), len(missing))


if __name__ == "__main__":
    sys.exit(main())
