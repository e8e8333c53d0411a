"""Programs that measure are run seldom: what they import has to be there all the same."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.documentation import ROOT

PLACES = ("benchmarks", "benchmarks/engines", "benchmarks/nexmark")
PROGRAMS = sorted(path for place in PLACES for path in (ROOT / place).glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_finds_what_it_imports(program: Path) -> None:
    importlib.import_module(".".join(program.relative_to(ROOT).with_suffix("").parts))
