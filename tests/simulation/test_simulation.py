"""Histories of a job from seeds: none may go wrong, and none may stay right when the code is wrong.

`docs/simulation.md` says what is simulated, and how to replay a seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bugs import BUGS, descriptions
from tests.simulation.kind import KINDS
from tests.simulation.many import history_of, run_many, run_seeds, seeds_for, seeds_for_all
from tests.simulation.report import seeds_needed, table
from tests.simulation.shrink import shrunk

SEEDS = 200
REAL_SEEDS = 12
SOAK_SEEDS = int(os.environ.get("SIMULATION_SEEDS", "10000"))
SOAK_LIMIT = 4000
REAL_TIME_SEEDS = 40
QUICKLY_FOUND = (
    "token not checked",
    "token not raised",
    "pointer before document",
    "document written in place",
    "ids not reserved",
    "newest is subsumed",
    "other attempts accepted",
    "missing tasks accepted",
    "commit before pointer",
    "next checkpoint forgets uncommitted output",
    "later checkpoint committed first",
    "any number of checkpoints waits",
    "one sink speaks for all",
    "notified before commit",
    "done before moved",
    "nothing is compacted",
    "sweep without grace",
    "savepoint document before files",
    "replica keeps what it has",
    "sink sweeps committed output",
    "nothing is subsumed",
    "documents never deleted",
    "staged output never swept",
    "ledger never trimmed",
    "half written intents stay",
    "register never trimmed",
    "half written versions stay",
)
"""Bugs that a few seeds find; `make test` leaves out those in `tests/long_tests.py`, `make soak` looks for all bugs."""
QUICKLY_FOUND_IN_REAL_TIME = (
    "barrier before the flush",
    "ended source holds its group",
    "fastest partition",
    "own runs forgotten",
    "position after the next read",
    "positions stay",
    "reports taken twice",
    "source over before its end",
    "task without driver goes on",
)
BLOCK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_history_goes_wrong(first: int) -> None:
    totals = run_seeds(range(first, first + BLOCK))
    assert totals.failures == {}, "replay one with: python -m tests.simulation SEED --shrink"
    assert totals.histories == BLOCK
    assert totals.met["the weather is good: world"] == BLOCK, "each history came to its end"


def test_no_history_with_real_tasks_goes_wrong() -> None:
    totals = run_seeds(range(REAL_SEEDS), "real")
    assert totals.failures == {}, "replay one with: python -m tests.simulation SEED --real"
    assert totals.met["new worker process: task"] and totals.met["second attempt: stage"]
    assert totals.met["compared with the dict: replica"]


def test_no_history_in_real_time_goes_wrong() -> None:
    totals = run_seeds(range(1, REAL_TIME_SEEDS + 1), "real-time")
    assert totals.failures == {}, "replay one with: python -m tests.simulation SEED --real-time"
    assert totals.met["the weather is good: world"] == REAL_TIME_SEEDS, "each history came to its end"
    assert totals.met["comes late: frame"] and totals.met["comes late: control message"]
    assert totals.met["goes on after its group has ended: task"] and totals.met["of an old attempt: frame"]


@pytest.mark.parametrize("bug", QUICKLY_FOUND_IN_REAL_TIME)
def test_a_bug_in_real_time_is_found(bug: str) -> None:
    assert seeds_for(bug, 100) is not None


@pytest.mark.parametrize(("kind", "seeds"), [("light", range(300, 305)), ("real-time", range(300, 302))])
def test_a_seed_replays_exactly_also_in_a_process_that_hashes_differently(kind: str, seeds: range) -> None:
    histories = [history_of(seed, kind=KINDS[kind]) for seed in seeds]
    told = [f"{history.signature} {history.steps}" for history in histories]
    program = (
        "from tests.simulation.kind import KINDS\n"
        "from tests.simulation.many import history_of\n"
        f"for history in (history_of(seed, kind=KINDS[{kind!r}]) for seed in {seeds!r}):\n"
        "    print(history.signature, history.steps, flush=True)\n"
    )
    assert output_of("-c", program, PYTHONHASHSEED="4711").split("\n")[:-1] == told


def test_the_command_runs_many_seeds_in_processes_of_their_own() -> None:
    assert "10 seeds, " in output_of("-m", "tests.simulation", "--seeds", "10", "--processes", "1")


def output_of(*arguments: str, **variables: str) -> str:
    """What a Python process prints."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]), **variables}
    answer = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    return answer.stdout


def test_two_seeds_tell_two_histories() -> None:
    assert len({history_of(seed).signature for seed in range(10)}) == 10


@pytest.mark.parametrize("bug", QUICKLY_FOUND)
def test_a_bug_is_found(bug: str) -> None:
    assert seeds_for(bug, 300) is not None


def test_a_failing_history_shrinks_to_one_that_fails_when_it_is_replayed() -> None:
    bug = "commit before pointer"
    seed = 3
    long = history_of(seed, bug)
    assert long.failure is not None
    short = shrunk(long, lambda recorded: history_of(seed, bug, dict(recorded)), tries=60)
    assert short.failure is not None
    assert len(short.drawn) < len(long.drawn) / 4
    again = history_of(seed, bug, short.drawn)
    assert (again.failure, again.signature) == (short.failure, short.signature)
    assert history_of(seed, None, short.drawn).failure is None, "without the bug the same history is right"


def test_the_command_tells_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["7"]) == 0
    assert "seed 7: nothing found" in capsys.readouterr().out
    assert main(["0", "--bug", "pointer before document"]) == 1
    assert "has no document" in capsys.readouterr().out


@pytest.mark.soak
def test_ten_thousand_histories() -> None:
    totals = run_many(0, SOAK_SEEDS, os.cpu_count() or 1)
    print(f"\n{table(totals)}")
    assert totals.failures == {}


@pytest.mark.soak
def test_five_hundred_histories_with_real_tasks() -> None:
    totals = run_many(0, 500, os.cpu_count() or 1, kind="real")
    print(f"\n{table(totals)}")
    assert totals.failures == {}


@pytest.mark.soak
def test_ten_thousand_histories_in_real_time() -> None:
    totals = run_many(0, SOAK_SEEDS, os.cpu_count() or 1, kind="real-time")
    print(f"\n{table(totals)}")
    assert totals.failures == {}


@pytest.mark.soak
def test_every_bug_is_found() -> None:
    found = seeds_for_all(list(BUGS), SOAK_LIMIT, os.cpu_count() or 1)
    print(f"\n{seeds_needed(found, descriptions())}")
    assert [bug for bug, seeds in found.items() if seeds is None] == []
