"""Fifty rounds of chaos with each kind of high availability; `make chaos` runs other seeds, and longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.rounds import run_rounds
from tests.chaos.site import KINDS

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "50"))


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_rounds_lose_and_double_nothing(kind: str, tmp_path: Path) -> None:
    report = run_rounds(kind, ROUNDS, 1, tmp_path)
    print(f"\n{report}")
    assert report.rounds == ROUNDS
