"""Checkpoints and savepoints of each version of the format, as they were written then, are read for ever.

What is written today has the same fields as the newest of them. If that is meant to change: raise the version where a
reader of today would be misled, describe it in docs/format.md, and add new archives with `python -m
tests.golden.keeper tests/golden NAME`; the old ones stay.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import read_checkpoint
from holdfast.kernel.ids import JobID
from tests.golden import keeper
from tests.golden.keeper import ASK, BACKENDS, BATCHES, NAME, START, VALUES, job_over

HERE = Path(__file__).parent
ARCHIVES = sorted(path for path in HERE.glob("format-*.zip") if path.stem.split("-", 2)[2] in keeper.WRITTEN)
FIRED = START + 2_000_000


def unpacked(archive: Path, place: Path) -> Path:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(place)
    return place


def expected(elements: list[tuple[str, int]], *, fired: bool) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """What is kept by key, what is expected of expiring and typed state, and the operator state."""
    kept: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for key in "abc":
        numbers = [n for k, n in elements if k == key]
        mapped: dict[str, int] = {}
        for n in numbers:
            mapped[f"m{n % 2}"] = n
            if n == 4:
                mapped.clear()
        total = sum(numbers) if numbers else None
        kept[key] = (numbers, sorted(mapped.items()), total, total / len(numbers) if total else None)
        typed = {name: value if numbers else None for name, (_, value) in VALUES.items()}
        more[key] = (numbers[-1] if numbers else None, total if fired else None, keeper._plain(typed))
    operator = (sorted(n for _, n in elements), sorted(k for k, _ in elements), [("last", 7)])
    return kept, more, operator


def judge(told: list[str], elements: list[tuple[str, int]], *, fired: bool) -> None:
    kept, more, operator = expected(elements, fired=fired)
    lines = [line for line in told if line]
    for key in "abc":
        assert repr((key, *kept[key])) in lines
        assert repr((key, *more[key])) in lines
    dealt = [ast.literal_eval(line) for line in lines if line.startswith("('operator'")]
    assert dealt
    assert all(union == operator[1] and shared == operator[2] for _, _, union, shared in dealt)
    assert all(set(split) <= set(operator[0]) for _, split, _, _ in dealt)


def flat(batches: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return [element for batch in batches for element in batch]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_goes_on_from_a_golden_checkpoint_with_either_backend(
    archive: Path, backend: str, tmp_path: Path
) -> None:
    told: list[str] = []
    root = unpacked(archive, tmp_path / "checkpoints")
    tick: list[list[tuple[str, int]]] = [[]]  # the timers fire at the end of an epoch
    job_over(root, [*BATCHES, *tick, *ASK], FIRED, told, parallelism=3, **{"state.backend.type": backend}).run()
    judge(told, flat(BATCHES), fired=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_starts_from_a_golden_savepoint_with_either_backend(archive: Path, backend: str, tmp_path: Path) -> None:
    told: list[str] = []
    (savepoint,) = (unpacked(archive, tmp_path / "old") / "savepoints").iterdir()
    options = {"state.backend.type": backend, "execution.state-recovery.path": str(savepoint)}
    job_over(tmp_path / "new", [*BATCHES[:-1], *ASK], START, told, **options).run()
    judge(told, flat(BATCHES[:-1]), fired=False)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_the_reader_in_the_examples_reads_it(archive: Path, tmp_path: Path) -> None:
    root = unpacked(archive, tmp_path)
    for place in (root / str(JobID.from_name(NAME)), next((root / "savepoints").iterdir())):
        found = {(uid, name): rows for uid, name, _, rows in read_checkpoint.states(place)}
        assert found["keep", "type-string"] == dict.fromkeys("abc", VALUES["string"][1])
        assert found["keep", "type-big_dec"]["a"] == VALUES["big_dec"][1]
        assert {uid for uid, _ in found} == {"keep", "collect"}


ADDED = re.compile(
    r"\.operators\[\]\.committables\.[^.]+\[\]\.(incarnation: str|rows: int|value\.(identity|checksum): str)"
    r"|\.extra\.event_time\..*: int|\.extra\.targets\..*: str|\.incarnations\[\]: str|\.request: str"
)
"""What is written since the golden archives were made. The register has its own format version for it."""


@pytest.mark.parametrize("name", keeper.WRITTEN)
def test_what_is_written_today_has_the_fields_of_the_newest_golden_checkpoint(name: str, tmp_path: Path) -> None:
    golden = unpacked(HERE / f"format-{keeper.VERSION}-{name}.zip", tmp_path / "golden")
    keeper.write(name, tmp_path / "today.zip")
    today = unpacked(tmp_path / "today.zip", tmp_path / "today")
    assert known_to_archives(shape(today)) == shape(golden)


def known_to_archives(written: dict[str, set[str]]) -> dict[str, set[str]]:
    """The fields without those that have been added since."""
    return {kind: {name for name in names if not ADDED.fullmatch(name)} for kind, names in written.items()}


def shape(root: Path) -> dict[str, set[str]]:
    """All fields of the documents and of the run files, with the types of their values."""
    job = root / str(JobID.from_name(NAME))
    found: dict[str, set[str]] = {"checkpoint": set(), "register": set(), "footer": set(), "columns": set()}
    for path in root.rglob("_metadata"):
        document = read_checkpoint.document(path)
        found["checkpoint"].update(fields(document))
        place = job if path.is_relative_to(job) else path.parent
        for operator in document["operators"]:
            for handle in operator["runs"]:
                run = read_checkpoint.Run(place, handle)
                found["footer"].update(fields(run.footer))
                for name in run.segments:
                    found["columns"].update(f"{name}.{column}" for row in run.rows(name)[:1] for column in row)
    for path in (job / "register").glob("v-*"):
        found["register"].update(fields(read_checkpoint.document(path)))
    return found


def fields(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from fields(item, f"{place}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, f"{place}[]")
    else:
        yield f"{place}: {type(value).__name__}"
