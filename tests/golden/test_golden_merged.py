"""The archives of merged runs: state that changed its form, event-time timers, raw state, and users' own types.

They are kept, and renewed, like those of `test_golden`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples import read_checkpoint
from holdfast.kernel.ids import JobID
from tests.golden import evolved, keeper
from tests.golden.evolved import BATCHES, BIG, KEYS, LONG_AFTER, NAME, STARTS, Element
from tests.golden.keeper import BACKENDS
from tests.golden.test_golden import HERE, known_to_archives, shape, unpacked

ARCHIVES = sorted(HERE.glob("format-*-merged.zip"))
NOW = BATCHES[-1][-1][2]
ASK = [(key, -1, NOW) for key in KEYS] * 2
AFTER_ALL = [("z", 10**9, NOW + 2 * LONG_AFTER)]
FIRST_PROGRAM = {n for batch in BATCHES[: STARTS[0]] for _, n, _ in batch}
RULES = {"first": 1, "later": BIG}
SHARED = ("shared", [0, 1, 10, 11, BIG], [0, 1, BIG, BIG], sorted(RULES.items()))


def flat(batches: Sequence[Sequence[Element]]) -> list[Element]:
    return [element for batch in batches for element in batch]


def of_key(elements: Sequence[Element], key: str) -> list[tuple[int, int]]:
    return [(n, at) for k, n, at in elements if k == key]


def records(elements: Sequence[Element], key: str) -> tuple[Any, Any, Any]:
    """The total, the weight and the cents of a key, as later programs see them."""
    numbers = [n for n, _ in of_key(elements, key)]
    if not numbers:
        return None, None, None
    total = (sum(numbers), None, "piece") if numbers[0] in FIRST_PROGRAM else (sum(numbers), numbers[0], "new")
    last = numbers[-1]
    weight = {"count": last, "unit": "kg"} if last in FIRST_PROGRAM else {"count": last + BIG, "unit": "g"}
    return total, weight, Decimal(last) / 4


def latest(numbers: Sequence[int]) -> dict[str, int]:
    kept: dict[str, int] = {}
    for n in numbers:
        kept[f"m{n % 2}"] = n
        if n % 5 == 0:
            kept.pop("m1", None)
    return kept


def judge(told: Sequence[str], elements: Sequence[Element], fired: bool, parallelism: int) -> None:
    """Compares what a job says that it has kept with a model in plain Python."""
    lines = set(told)
    for key in KEYS:
        found = of_key(elements, key)
        numbers = [n for n, _ in found]
        times = sorted(at + after for _, at in found for after in ((50, LONG_AFTER) if fired else (50,)))
        if not fired:
            times = [time for time in times if time < elements[-1][2]]
        assert repr((key, *records(elements, key), numbers)) in lines
        last = numbers[-1] if numbers else None
        assert repr((key, sorted(latest(numbers).items()), sum(numbers) if numbers else None, last)) in lines
        assert repr((key, times)) in lines
    counted = [ast.literal_eval(line) for line in lines if line.startswith("('counted'")]
    more = 1 if fired else 0
    assert {key: count for _, key, count, _ in counted} == {key: len(of_key(elements, key)) for key in KEYS}
    shared = [ast.literal_eval(line) for line in lines if line.startswith("('shared'")]
    assert shared and all((union, rules) == SHARED[2:] for _, _, union, rules in shared)
    dealt = [n for split in {tuple(split) for _, split, _, _ in shared} for n in split]
    assert len(set(dealt)) == len(dealt) and set(dealt) <= set(SHARED[1])
    if parallelism == 1:
        assert shared[0] == SHARED
        assert {whole for _, _, _, whole in counted} == {len(elements) + more}


@pytest.mark.parametrize(("backend", "parallelism"), [(BACKENDS[0], 1), (BACKENDS[0], 3), (BACKENDS[1], 2)])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_goes_on_from_a_checkpoint_of_merged_runs(
    archive: Path, backend: str, parallelism: int, tmp_path: Path
) -> None:
    told: list[str] = []
    root = unpacked(archive, tmp_path / "checkpoints")
    batches = [*BATCHES, AFTER_ALL, ASK]
    options = {"state.backend.type": backend}
    evolved.job_over(evolved.program(told), root, batches, parallelism, **options).run()
    judge(told, flat(BATCHES), True, parallelism)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_starts_from_a_savepoint_of_merged_runs(archive: Path, backend: str, tmp_path: Path) -> None:
    told: list[str] = []
    (savepoint,) = (unpacked(archive, tmp_path / "old") / "savepoints").iterdir()
    options = {"state.backend.type": backend, "execution.state-recovery.path": str(savepoint)}
    batches = [*BATCHES[:-1], ASK]
    evolved.job_over(evolved.program(told), tmp_path / "new", batches, 1, **options).run()
    judge(told, flat(BATCHES[:-1]), False, 1)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_the_reader_in_the_examples_reads_it(archive: Path, tmp_path: Path) -> None:
    root = unpacked(archive, tmp_path)
    places = {root / str(JobID.from_name(NAME)): BATCHES, next((root / "savepoints").iterdir()): BATCHES[:-1]}
    for place, batches in places.items():
        elements = flat(batches)
        found = {(uid, name): content for uid, name, _, content in read_checkpoint.states(place)}
        for key in KEYS:
            numbers = [n for n, _ in of_key(elements, key)]
            total, weight, cents = records(elements, key)
            assert tuple(found["keep", "total"][key].values()) == total
            assert found["keep", "weight"][key] == weight
            assert found["keep", "cents"][key] == int(cents * 100).to_bytes(8, "big")
            assert found["keep", "all"][key] == numbers
            assert dict(found["keep", "latest"].get(key, {})) == latest(numbers)
            assert found["keep", "sum"][key] == sum(numbers)
            assert found["keep", "seen"][key] == numbers[-1]
        timers = [time for times in found["keep", "_timer_state/event_user-timers"].values() for time in times]
        left = {time for _, _, at in elements for time in (at + 50, at + LONG_AFTER) if time >= elements[-1][2]}
        assert sorted(timers) == sorted(left)
        assert sum(int(part) for parts in found["count", "_raw_operator"].values() for part in parts) == len(elements)
        groups = [part for parts in found["count", "_raw_keyed"].values() for part in parts]
        assert len({part["key_group"] for part in groups}) == len(groups) > 1
        assert sum(sum(ast.literal_eval(part["data"].decode()).values()) for part in groups) == len(elements)
        assert sorted(n for part in found["share", "split"].values() for n in part) == SHARED[1]
        assert found["share", "union"] == {0: [BIG], 1: [0, 1, BIG]}
        assert found["share", "rules"] == {0: RULES, 1: RULES}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_key_group_of_raw_state_is_with_one_subtask_and_each_subtask_has_the_whole_broadcast_state(
    archive: Path, tmp_path: Path
) -> None:
    """Also when a job has gone on with more subtasks, some of which had nothing before."""
    root = unpacked(archive, tmp_path)
    place = root / str(JobID.from_name(NAME))
    for parallelism in (2, 3):
        if parallelism == 3:
            evolved.job_over(evolved.program([]), root, [*BATCHES, AFTER_ALL], parallelism).run()
        document = read_checkpoint.checkpoint(place)[0]
        modes = {
            (operator["uid"], name): state["mode"]
            for operator in document["operators"]
            for subtask in operator["subtasks"]
            for name, state in (subtask or {}).get("states", {}).items()
        }
        assert (modes["count", "_raw_operator"], modes["count", "_raw_keyed"]) == ("split", "union")
        found = {(uid, name): content for uid, name, _, content in read_checkpoint.states(place)}
        groups = [(part["key_group"], at) for at, parts in found["count", "_raw_keyed"].items() for part in parts]
        assert len({group for group, _ in groups}) == len(groups) > 1
        assert all(at == group * parallelism // evolved.GROUPS for group, at in groups)
        assert found["share", "rules"] == dict.fromkeys(range(parallelism), RULES)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_it_holds_what_it_is_for(archive: Path, tmp_path: Path) -> None:
    root = unpacked(archive, tmp_path)
    assert archive.stat().st_size < 200_000
    for place in (root / str(JobID.from_name(NAME)), next((root / "savepoints").iterdir())):
        is_savepoint = (place / "_metadata").exists()
        document = read_checkpoint.document(place / "_metadata" if is_savepoint else read_checkpoint.newest(place))
        operators = {operator["uid"]: operator for operator in document["operators"]}
        runs = [read_checkpoint.Run(place, handle) for handle in operators["keep"]["runs"]]
        # Merged runs of the first form and of the one after it, and runs that were not merged yet.
        schemas = [run.segments["sum"]["schema"] if "sum" in run.segments else {} for run in runs]
        merged = [handle.get("lineage") is not None for handle in operators["keep"]["runs"]]
        found = {(is_merged, len(schema.get("former", ()))) for is_merged, schema in zip(merged, schemas, strict=True)}
        assert found >= {(True, 0), (True, 1), (False, 1)}
        since = {run.segments["seen"]["schema"].get("since") for run in runs if "seen" in run.segments}
        assert None in since and [time >= evolved.SECOND_START for time in since - {None}] == [True]
        assert all(handle["least_timers"]["event"] is not None for handle in operators["keep"]["runs"][-2:])
        assert any(run.footer["fired_through"] for run in runs)
        union = operators["share"]["subtasks"][1]["states"]["union"]
        assert union["handed_out"] and {chunk.get("type") for chunk in union["chunks"]} == {None, "int"}
        assert operators["share"]["subtasks"][1]["format_version"] == 2


def test_what_is_written_today_has_the_fields_of_the_newest_archive(tmp_path: Path) -> None:
    golden = unpacked(HERE / f"format-{keeper.VERSION}-{keeper.NEWEST_MERGED}.zip", tmp_path / "golden")
    evolved.write(tmp_path / "today")
    assert known_to_archives(shape(tmp_path / "today")) == shape(golden)
