"""Watches one aircraft with ``holdfast query --watch`` while the job runs, dies and runs again.

What the command shows is checked against the batch computation: each answer must be what the aircraft's history was
after some number of flights, and that number never goes back.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

AIRCRAFT = "N14228"
COMMAND = ["query", "flights", "aircraft", AIRCRAFT, "--watch"]
SHOWN = 8


class Watch:
    """The command at work; what it prints goes to a file."""

    def __init__(self, output: Path, port: str) -> None:
        self._output = output
        with output.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("holdfast")), *COMMAND, "--address", f"127.0.0.1:{port}", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """It would wait for another run of the job."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()

    def answers(self) -> list[dict[str, object]]:
        """All that was shown, oldest first; a line that was cut off by the end is left out."""
        lines = self._output.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]


def wrong_answers(answers: list[dict[str, object]], expected: pa.Table) -> list[str]:
    """What was shown and is not a history of the aircraft, or is of before what was shown earlier."""
    rows = expected.filter(pc.equal(expected["tailnum"], AIRCRAFT))
    totals = dict(zip(rows["seq"].to_pylist(), rows["total_arr_delay"].to_pylist(), strict=True))
    found, before = [], 0
    for answer in answers:
        value = answer["value"]
        if value is None:  # before its first flight
            flights = 0
        else:
            assert isinstance(value, dict)
            flights = value["flights"]
            if totals.get(flights) != value["total_arr_delay"]:
                found.append(f"checkpoint {answer['checkpoint_id']}: {value}")
        if flights < before:
            found.append(f"checkpoint {answer['checkpoint_id']}: {flights} flights after {before}")
        before = flights
    return found


def table(answers: list[dict[str, object]]) -> str:
    """Some of the answers, evenly chosen, with the first and the last."""
    count = min(SHOWN, len(answers))
    chosen = [answers[round(i * (len(answers) - 1) / max(1, count - 1))] for i in range(count)]
    return "\n".join(f"checkpoint {answer['checkpoint_id']:>4}  {json.dumps(answer['value'])}" for answer in chosen)
