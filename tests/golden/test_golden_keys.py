"""The archive of keys of every kind, of rows that delete and clear, of namespaces, of a time to live, and of a hook.

It is kept, and renewed, like those of `test_golden`. What docs/format.md says about rows, keys and hashes is checked
against it here by programs that were written from that page.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples import read_checkpoint
from holdfast.kernel.ids import JobID
from tests.golden import keeper, keyed
from tests.golden.keeper import BACKENDS
from tests.golden.keyed import COUNT, EPOCHS, KEYS, LIVES, NAME, QUESTION, ROWS, START, inputs, numbers
from tests.golden.test_golden import HERE, known_to_archives, shape, unpacked

ARCHIVES = sorted(HERE.glob("format-*-keys.zip"))
Left = tuple[int | None, list[int], dict[Any, int]]


def left(given: list[int], entry: Any) -> Left:
    """The value, the list and the map that some numbers leave, by a model in plain Python."""
    last: int | None = None
    seen: list[int] = []
    mapped: dict[Any, int] = {}
    for n in given:
        last, digit = None if n % 10 == 2 else n, n % 10
        seen = [] if digit == 3 else [n] if digit == 4 else [*seen, n]
        if digit in (6, 7):
            mapped = {}
        if digit not in (5, 6):
            mapped[entry(n)] = n
        else:
            mapped.pop(entry(n), None)
    return last, seen, mapped


def given(key: int, epochs: int) -> list[int]:
    return [n for epoch in range(epochs) for n in numbers(epoch, key)]


def of_kind(kind: str, epochs: int) -> list[Left]:
    """What each key of a kind has; entries of maps by the number of their key."""
    first, groups = list(KEYS).index(kind), KEYS[kind][1]
    return [left(given(first + at, epochs), lambda n: n // 2 % len(groups)) for at in range(len(groups))]


def of_window(key: int, window: int, epochs: int) -> Left:
    return left([n for n in given(key, epochs) if n % COUNT == window], lambda n: f"m{n % 4}")


def judge(told: list[str], epochs: int) -> None:
    lines = set(told) - {""}
    for kind in KEYS:
        for at, (last, seen, mapped) in enumerate(of_kind(kind, epochs)):
            assert repr((kind, at, last, seen, sorted(mapped.items()))) in lines
    for key, name in enumerate(ROWS):
        windows = [of_window(key, window, epochs) for window in range(COUNT)]
        assert repr(("windows", name, [(a, b, sorted(c.items())) for a, b, c in windows])) in lines
        every = given(key, epochs)
        assert repr(("uses", name, every[-1], every, [(f"m{n:02}", n) for n in every])) in lines
    assert len(lines) == sum(len(groups) for _, groups in KEYS.values()) + 2 * len(ROWS)


@pytest.mark.parametrize(("backend", "parallelism"), [(BACKENDS[0], 3), (BACKENDS[1], 2)])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_goes_on_from_its_checkpoint(archive: Path, backend: str, parallelism: int, tmp_path: Path) -> None:
    told: list[str] = []
    restored: list[int | None] = []
    root = unpacked(archive, tmp_path / "checkpoints")
    options = {"state.backend.type": backend}
    epochs, bookmark = [*inputs(EPOCHS), QUESTION], page(places(root)[0][0])
    keyed.job_over(root, epochs, START + 10_000, told, restored, parallelism, **options).run()
    judge(told, EPOCHS)
    assert restored == [bookmark]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_job_starts_from_its_savepoint(archive: Path, backend: str, tmp_path: Path) -> None:
    told: list[str] = []
    restored: list[int | None] = []
    (savepoint,) = (unpacked(archive, tmp_path / "old") / "savepoints").iterdir()
    options = {"state.backend.type": backend, "execution.state-recovery.path": str(savepoint)}
    epochs = [*inputs(EPOCHS - 1), QUESTION]
    keyed.job_over(tmp_path / "new", epochs, START + 10_000, told, restored, **options).run()
    judge(told, EPOCHS - 1)
    assert restored == [page(savepoint)]


def places(root: Path) -> list[tuple[Path, int]]:
    """The newest checkpoint and the savepoint, each with its number of epochs."""
    return [(root / str(JobID.from_name(NAME)), EPOCHS), (next((root / "savepoints").iterdir()), EPOCHS - 1)]


def page(place: Path) -> int:
    """The state of the hook, as a stranger reads it: what is in it, its serializer decides."""
    return int(json.loads(read_checkpoint.hooks(place)["bookmark"])["page"])


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_the_reader_in_the_examples_reads_it(archive: Path, tmp_path: Path) -> None:
    for place, epochs in places(unpacked(archive, tmp_path)):
        found = {(uid, name): content for uid, name, _, content in read_checkpoint.states(place)}
        for kind in KEYS:
            uid, expected = f"key-{kind}", of_kind(kind, epochs)
            assert numbered(kind, found[uid, "last"]) == {
                at: last for at, (last, _, _) in enumerate(expected) if last is not None
            }
            assert numbered(kind, found[uid, "seen"]) == {at: seen for at, (_, seen, _) in enumerate(expected) if seen}
            maps = {at: numbered(kind, entries) for at, entries in numbered(kind, found[uid, "by_key"]).items()}
            assert maps == {at: mapped for at, (_, _, mapped) in enumerate(expected) if mapped}
        windows = {
            (name, window.to_bytes(8, "big")): of_window(key, window, epochs)
            for key, name in enumerate(ROWS)
            for window in range(COUNT)
        }
        assert found["windows", "last"] == {key: last for key, (last, _, _) in windows.items() if last is not None}
        assert found["windows", "seen"] == {key: seen for key, (_, seen, _) in windows.items() if seen}
        assert found["windows", "mapped"] == {key: mapped for key, (_, _, mapped) in windows.items() if mapped}
        timers = Counter(
            (key, time) for key, times in found["windows", "_timer_state/event_windows"].items() for time in times
        )
        assert timers == Counter(timers_of(epochs))
        assert page(place) == read_checkpoint.checkpoint(place)[0]["checkpoint_id"], "it was told of each of them"


def numbered(kind: str, content: dict[Any, Any]) -> dict[int, Any]:
    """The same by the number of the key."""
    whole = kind == "whole-number"
    found = {keyed.index_of(kind, int(key) if whole else key): value for key, value in content.items()}
    assert len(found) == len(content)
    return found


def timers_of(epochs: int) -> set[tuple[Any, int]]:
    found = set()
    for key, name in enumerate(ROWS):
        for n in given(key, epochs):
            window = (n % COUNT).to_bytes(8, "big")
            found |= {((name, window), n), ((name, window), n + 100)}
            if n > 20:
                found.discard(((name, (1).to_bytes(8, "big")), 1))
    return found


def runs_of(place: Path) -> Any:
    """Each run with its operator."""
    document, root = read_checkpoint.checkpoint(place)
    for operator in document["operators"]:
        for handle in operator["runs"]:
            yield operator, read_checkpoint.Run(root, handle)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_it_holds_what_it_is_for(archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_size < 400_000
    for place, _ in places(unpacked(archive, tmp_path)):
        operations: dict[tuple[str, str], set[int]] = {}
        for operator, run in runs_of(place):
            for name in run.segments:
                who = operator["uid"].split("-")[0]
                operations.setdefault((who, name), set()).update(row["op"] for row in run.rows(name))
        put, delete, append, clear = range(4)
        for who, maps in (("key", "by_key"), ("windows", "mapped")):
            assert operations[who, "last"] == {put, delete}
            assert operations[who, "seen"] == {put, delete, append}
            assert operations[who, maps] == {put, delete, clear}
        assert operations["windows", "_timer_state/event_windows"] == {put, delete}


@pytest.mark.parametrize("after", [-1, 0, 1000, 3000])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_value_expires_at_its_stamp_plus_the_time_to_live(archive: Path, after: int, tmp_path: Path) -> None:
    """Each epoch was some seconds after the one before. What the job does not see any more the reader leaves out."""
    root = unpacked(archive, tmp_path / "checkpoints")
    now, place = START + LIVES + after, places(root)[0][0]
    rows = [row for operator, run in runs_of(place) if operator["uid"] == "uses" for row in run.rows("mapped")]
    stamps = sorted({row["stamp"] for row in rows})
    assert stamps == [START, START + 1000, START + 3000], "the savepoint was an epoch, too"
    assert read_checkpoint.checkpoint(place)[0]["processing_time"] == stamps[-1]
    alive = [epoch for epoch, stamp in enumerate(stamps) if stamp + LIVES > now]

    found = {(uid, name): content for uid, name, _, content in read_checkpoint.states(place, now)}
    told: list[str] = []
    keyed.job_over(root, [*inputs(EPOCHS), QUESTION], now, told, []).run()

    for key, name in enumerate(ROWS):
        lives = [n for epoch in alive for n in numbers(epoch, key)]
        mapped = {f"m{n:02}": n for n in lives}
        assert found["uses", "seen"].get(name, []) == lives
        assert found["uses", "mapped"].get(name, {}) == mapped
        seen = lives[-1] if lives else None
        assert repr(("uses", name, seen, lives, sorted(mapped.items()))) in told
        # How long this one lives is not in the files, so to the reader it is there.
        assert found["uses", "last"][name] == numbers(EPOCHS - 1, key)[-1]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_the_files_say_how_long_values_live_only_where_compaction_may_drop_them(archive: Path, tmp_path: Path) -> None:
    root = unpacked(archive, tmp_path)
    schemas = {name: schema for uid, name, schema, _ in read_checkpoint.states(places(root)[0][0]) if uid == "uses"}
    assert {name: (schema["ttl"], schema.get("time_to_live")) for name, schema in schemas.items()} == {
        "last": (True, None),
        "mapped": (True, LIVES),
        "seen": (True, LIVES),
    }


def test_what_is_written_today_has_the_fields_of_the_newest_archive(tmp_path: Path) -> None:
    golden = unpacked(HERE / f"format-{keeper.VERSION}-keys.zip", tmp_path / "golden")
    keyed.write(tmp_path / "today")
    assert known_to_archives(shape(tmp_path / "today")) == shape(golden)
