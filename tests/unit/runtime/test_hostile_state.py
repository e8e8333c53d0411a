"""State that somebody has damaged: refused by name, never believed, and the way to go on is in the message."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoint.completed_checkpoint import pointer_for
from holdfast.checkpoint.metadata import KIND, CheckpointMetadata, encode
from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError
from holdfast.runtime.task import worker_process
from holdfast.state.run_file import TRAILER_SIZE, forget_runs, handle_of
from holdfast.state.version import STATE_CACHE
from holdfast.storage.register import FileRegister
from holdfast.storage.state_handle import decode_document, encode_document
from tests.stories import ledger, tidiness
from tests.stories.local import OPTIONS, RESTARTING, run

EPOCHS, ROWS, ACCOUNTS, SEED = 8, 20, 5, 5
HISTORY = 6
PATH = "execution.state-recovery.path"
PAYMENTS = ledger.payments(EPOCHS, ROWS, ACCOUNTS, SEED)


def ledger_run(place: Path, epochs: int = EPOCHS, out: str = "out", **options: str) -> None:
    STATE_CACHE.clear()
    forget_runs()
    worker_process.unload_all()
    graph = ledger.graph(place / out, two_stages=True)
    run(graph, place / "job", ledger.inputs(PAYMENTS[:epochs]), {**RESTARTING, **options})


@pytest.fixture
def history(place: Path) -> Path:
    """A job that was run for some epochs."""
    ledger_run(place, HISTORY)
    return place


def refusal(place: Path, error: type[HoldfastError] = CorruptFileError) -> HoldfastError:
    """What the job says; it changes nothing but the token."""
    directory = tidiness.job_directory(place / "job")
    files = {path: path.read_bytes() for path in Path(directory.path).rglob("*") if path.is_file()}
    with pytest.raises(error) as caught:
        ledger_run(place)
    for path, content in files.items():
        assert path.read_bytes() == content, f"{path} was changed"
    assert caught.type is error
    assert caught.value.__cause__ is not caught.value
    return caught.value


def proposed(error: HoldfastError) -> str:
    """The path after -s in a message."""
    found = re.search(r"-s (/\S+)", str(error))
    assert found is not None, str(error)
    return found[1]


def runs_of(place: Path, epoch: int) -> list[Path]:
    """The runs that the newest checkpoint names and that were written in an epoch."""
    directory = tidiness.job_directory(place / "job")
    newest = tidiness.retained(directory)[-1].metadata
    return [
        Path(directory.path) / run.path
        for operator in newest.operators
        for run in operator.runs
        if Path(run.path).name.split("-")[1] == f"{epoch:09d}"
    ]


@contextmanager
def damaged(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """A file with another content, for a while."""
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    try:
        yield
    finally:
        path.write_bytes(whole)


def flip(offset: int, bit: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:offset] + bytes([whole[offset] ^ (1 << bit)]) + whole[offset + 1 :]


def catches_up(place: Path, path: str, first: int) -> None:
    """Started from a proposed checkpoint, the job processes again what came after it, and comes to the same rows."""
    ledger_run(place, out="again", **{PATH: path})
    again = ledger.read(place / "again")
    assert {row[0] for row in again} >= {payment for epoch in PAYMENTS[first:] for payment, _, _ in epoch}
    assert sorted({row[:6] for row in [*again, *ledger.read(place / "out")]}) == ledger.model(PAYMENTS)


# Runs.


def test_a_flipped_bit_anywhere_in_a_run_is_found(history: Path) -> None:
    rng = random.Random(SEED)
    directory = tidiness.job_directory(history / "job")
    path = runs_of(history, HISTORY)[0]
    handle = handle_of(directory.fs, directory.path, f"shared/{path.name}")
    size, footer = path.stat().st_size, handle.footer_offset
    regions = [(0, 8), (8, 64), (64, footer), (footer, size - TRAILER_SIZE), (size - TRAILER_SIZE, size)]
    offsets = [0, 63, 64, footer - 1, footer, size - TRAILER_SIZE, size - 1]
    offsets += [rng.randrange(first, end) for first, end in regions for _ in range(4)]
    for offset in offsets:
        bit = rng.randrange(8)
        with damaged(path, flip(offset, bit)):
            error = refusal(history)
            assert isinstance(error, CorruptFileError)
            assert error.path == str(path), f"bit {bit} of byte {offset}"
            assert proposed(error) == tidiness.retained(directory)[-2].path
    ledger_run(history)
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 1000, -64, -1])
def test_a_truncated_run_is_rejected_and_the_previous_checkpoint_restores(history: Path, length: int) -> None:
    path = runs_of(history, HISTORY)[0]
    with damaged(path, lambda whole: whole[:length]):
        error = refusal(history)
        assert str(path) in str(error)
        catches_up(history, proposed(error), HISTORY - 1)


def test_a_run_that_is_too_long_is_refused(history: Path) -> None:
    path = runs_of(history, HISTORY)[0]
    with damaged(path, lambda whole: whole + b"\0"):
        assert str(path) in str(refusal(history))


def test_a_missing_run_is_treated_as_a_damaged_one(history: Path) -> None:
    path = runs_of(history, HISTORY)[0]
    whole = path.read_bytes()
    path.unlink()
    error = refusal(history)
    assert str(path) in str(error)
    catches_up(history, proposed(error), HISTORY - 1)
    path.write_bytes(whole)


def test_a_run_in_the_place_of_another_is_refused(history: Path) -> None:
    one, two = runs_of(history, HISTORY)[:2]
    with damaged(one, lambda _: two.read_bytes()):
        assert str(one) in str(refusal(history))


def test_a_damaged_run_in_all_retained_checkpoints_is_reported(history: Path) -> None:
    path = runs_of(history, 1)[0]
    with damaged(path, flip(100, 3)):
        error = refusal(history)
        assert str(path) in str(error)
        assert "Every checkpoint of the job needs it" in str(error)
    ledger_run(history)
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


def test_damage_that_is_met_in_the_middle_of_a_job_is_refused_too(history: Path) -> None:
    """The run is whole when the job starts, and damaged when it needs it: with cold workers, in the next epoch."""
    path = runs_of(history, HISTORY)[0]
    whole = path.read_bytes()

    def strike(stage: int, partition: int) -> None:
        if len(tidiness.retained(directory)) and tidiness.retained(directory)[-1].metadata.epoch > HISTORY:
            path.write_bytes(flip(200, 1)(whole))

    directory = tidiness.job_directory(history / "job")
    graph = ledger.graph(history / "out", two_stages=True)
    with pytest.raises(CorruptFileError) as caught:
        run(graph, history / "job", ledger.inputs(PAYMENTS), OPTIONS, interceptor=strike, amnesia=True)
    assert caught.value.path == str(path)
    path.write_bytes(whole)
    ledger_run(history)
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


# Documents.


def test_a_flipped_bit_anywhere_in_the_newest_document_is_found(history: Path) -> None:
    rng = random.Random(SEED)
    checkpoints = tidiness.retained(tidiness.job_directory(history / "job"))
    path = Path(checkpoints[-1].path) / "_metadata"
    size = path.stat().st_size
    for offset in [0, size - 1, *(rng.randrange(size) for _ in range(12))]:
        with damaged(path, flip(offset, rng.randrange(8))):
            error = refusal(history)
            assert isinstance(error, CorruptFileError) and error.path == str(path)
            assert proposed(error) == checkpoints[-2].path


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_truncated_document_is_refused_and_the_checkpoint_before_catches_up(history: Path, length: int) -> None:
    path = Path(tidiness.retained(tidiness.job_directory(history / "job"))[-1].path) / "_metadata"
    path.write_bytes(path.read_bytes()[:length])
    catches_up(history, proposed(refusal(history)), HISTORY - 1)
    # The damaged one is forgotten, and the job goes on by itself from now on.
    assert not path.exists()
    ledger_run(history, out="again")
    tidiness.inspect(history / "job")


def test_if_an_older_document_is_damaged_the_newest_is_proposed_and_loses_nothing(history: Path) -> None:
    checkpoints = tidiness.retained(tidiness.job_directory(history / "job"))
    document = Path(checkpoints[0].path) / "_metadata"
    document.write_bytes(flip(500, 5)(document.read_bytes()))
    path = proposed(refusal(history))
    assert path == checkpoints[-1].path
    ledger_run(history, **{PATH: path})
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


# The register.


def newest_version(place: Path) -> Path:
    return max(Path(tidiness.job_directory(place / "job").register_dir).glob("v-*"))


def test_a_flipped_bit_anywhere_in_the_newest_version_of_the_register_is_found(history: Path) -> None:
    rng = random.Random(SEED)
    path = newest_version(history)
    size = path.stat().st_size
    newest = tidiness.retained(tidiness.job_directory(history / "job"))[-1].path
    for offset in [0, size - 1, *(rng.randrange(size) for _ in range(12))]:
        with damaged(path, flip(offset, rng.randrange(8))):
            error = refusal(history)
            assert isinstance(error, CorruptFileError) and error.path == str(path)
            assert proposed(error) == newest, "the last version only notes that all sinks were told"


def test_without_a_damaged_version_of_the_register_the_one_before_counts(history: Path) -> None:
    path = newest_version(history)
    with damaged(path, lambda whole: whole[:-10]):
        error = refusal(history)
        path.rename(history / "moved away")
        ledger_run(history, **{PATH: proposed(error)})
        path.touch()
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


# Newer versions.


def newer(metadata: CheckpointMetadata) -> bytes:
    """A document as a later release of Holdfast might write it."""
    body = decode_document(encode(metadata), "", KIND, 1)
    return encode_document(KIND, 99, {**body, "what_nobody_knows_yet": True})


def test_a_checkpoint_of_a_newer_release_is_refused_and_nothing_changes(history: Path) -> None:
    directory = tidiness.job_directory(history / "job")
    newest = tidiness.retained(directory)[-1]
    path = Path(newest.path) / "_metadata"
    register = FileRegister(directory.fs, directory.register_dir)
    data = newer(newest.metadata)
    pointer = pointer_for(newest.metadata, data, directory.relative(str(path)))
    path.write_bytes(data)
    register.raise_token("a later release").write(
        lambda state: replace(state, checkpoints=(*state.checkpoints[:-1], pointer))
    )
    error = refusal(history, FormatVersionError)
    assert isinstance(error, FormatVersionError)
    assert (error.path, error.found) == (str(path), 99)
    assert "Upgrade Holdfast" in str(error)
    assert len(ledger.read(history / "out")) == HISTORY * ROWS


def test_a_snapshot_of_a_newer_release_is_refused_and_nothing_changes(history: Path) -> None:
    newest = tidiness.retained(tidiness.job_directory(history / "job"))[-1]
    snapshot = history / "snapshot"
    snapshot.mkdir()
    (snapshot / "_metadata").write_bytes(newer(newest.metadata))
    with pytest.raises(FormatVersionError, match="version 99"):
        ledger_run(history, **{PATH: str(snapshot)})
    ledger_run(history)
    ledger.audit(history / "out", PAYMENTS, two_stages=True)


def test_a_register_of_a_newer_release_is_refused(history: Path) -> None:
    path = newest_version(history)

    def as_newer(whole: bytes) -> bytes:
        return encode_document("register", 99, decode_document(whole, "", "register", 2))

    with damaged(path, as_newer):
        error = refusal(history, FormatVersionError)
        assert isinstance(error, FormatVersionError) and error.path == str(path)
    ledger_run(history)
    ledger.audit(history / "out", PAYMENTS, two_stages=True)
