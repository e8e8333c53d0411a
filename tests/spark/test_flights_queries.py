"""The flights job answers while it runs: an aircraft's totals move from checkpoint to checkpoint."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from examples.flights import oracle, prepare, watch
from tests.documentation import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DAYS, DAYS_PER_EPOCH = 30, 6


def test_an_aircraft_is_queried_while_the_job_runs(tmp_path: Path) -> None:
    flights = prepare.read_flights()
    (tmp_path / "flights").mkdir()
    days = prepare.write_days(flights[(flights["month"] == 1) & (flights["day"] <= DAYS)], tmp_path / "flights")
    expected = oracle.expected_output(oracle.read_input(tmp_path / "flights"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    watching = watch.Watch(tmp_path / "watch.jsonl", port)  # before anybody listens
    try:
        job = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "flights" / "job.py"), "--files-per-epoch", str(DAYS_PER_EPOCH)]
            + [f"--{name}={tmp_path / name}" for name in ("output", "checkpoints")]
            + ["--input", str(tmp_path / "flights"), "--query-port", port],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=200,
        )
    finally:
        watching.end()
    assert job.returncode == 0, job.stdout
    assert len(days) == DAYS and oracle.compare(tmp_path / "output", expected) == []

    answers = watching.answers()
    assert watch.wrong_answers(answers, expected) == []
    checkpoints = [answer["checkpoint_id"] for answer in answers]
    assert checkpoints == sorted(set(checkpoints))
    moved = {json.dumps(answer["value"]) for answer in answers}
    assert len(moved) >= 3, f"the totals did not move: {answers}"


def test_a_wrong_answer_would_be_noticed() -> None:
    rows = [{"tailnum": watch.AIRCRAFT, "seq": n, "total_arr_delay": 10.0 * n} for n in range(1, 4)]
    expected = pa.Table.from_pylist(rows)

    def answer(flights: int, total: float) -> dict[str, object]:
        return {"checkpoint_id": flights, "value": {"flights": flights, "total_arr_delay": total}}

    right = [{"checkpoint_id": 0, "value": None}, answer(1, 10.0), answer(3, 30.0)]
    assert watch.wrong_answers(right, expected) == []
    assert len(watch.wrong_answers([*right, answer(2, 20.0)], expected)) == 1
    assert len(watch.wrong_answers([answer(2, 30.0)], expected)) == 1
