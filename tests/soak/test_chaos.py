"""Fifty rounds of chaos with each kind of high availability, by epochs and in real time; see `make chaos` for more."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from tests.chaos.rounds import run_rounds, tables
from tests.chaos.site import EPOCHS, KINDS, ONE_WORKER, REAL_TIME
from tests.services.kubernetes.cluster import REAL

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "50"))
PROCESSES = {"killed", "stopped and continued", "clock moved"}
FAULTS = {kind: PROCESSES | {"disk full"} for kind in KINDS}
FAULTS["zookeeper"] |= {"connections reset", "data dropped"}
FAULTS["kubernetes"] |= {"connections reset", "data dropped"}
OF_SERVERS = {
    "none": set[str](),
    "filesystem": set[str](),
    "zookeeper": PROCESSES,
    "kubernetes": {"stopped and continued"} if os.environ.get(REAL) else PROCESSES,
}
A_DEAL = 12
"""In so many rounds each fault has come, if there always was somebody to strike."""
SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
OLD = pytest.mark.skipif(SPARK < (4, 3), reason="Spark before 4.3 has no pipelined shuffle")


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("engine", [EPOCHS, pytest.param(REAL_TIME, marks=OLD), pytest.param(ONE_WORKER, marks=OLD)])
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_rounds_lose_and_double_nothing(kind: str, engine: str, tmp_path: Path) -> None:
    report = run_rounds(kind, ROUNDS, 1, tmp_path, engine=engine)
    print(f"\n{tables([report])}")
    assert report.rounds == ROUNDS
    if ROUNDS >= A_DEAL:
        missing = FAULTS[kind] - {fault for fault, _ in report.met}
        missing |= {f"{fault}: server" for fault in OF_SERVERS[kind] if not report.met[fault, "server"]}
        if engine != EPOCHS and not report.met["killed", "busy worker"]:
            missing.add("killed: busy worker")
        assert not missing, f"these faults have not come: {sorted(missing)}; left out: {report.left_out}"
