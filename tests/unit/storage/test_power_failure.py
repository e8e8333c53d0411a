"""What was reported to be written survives a power failure, also where the report had to be found out by reading back.

The real file system runs on a disk in memory that keeps only what was synced.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.storage import CheckpointStorageLocationReference, FileCheckpointLocation
from holdfast.datastream.sinks.output_directory import CommitLedger, OutputDirectory, StagedFile
from holdfast.errors import HoldfastError, PossibleInconsistentStateError, StorageError
from holdfast.storage import local
from holdfast.storage import local as regular_file
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from tests.simulation.choices import Choices
from tests.simulation.disk import Disk
from tests.simulation.posix import Posix
from tests.simulation.weather import Climate, Weather
from tests.simulation.world import World


class Machine:
    """A machine whose directories cannot be synced for a while, and whose power can fail."""

    def __init__(self) -> None:
        world = World(Choices(0))
        self.disk = Disk(lambda: world.now)
        self.posix = Posix(world, self.disk, Weather(world, Climate(), self.lose_power), lambda *seen: None)
        self._sync = self.disk.sync_directory

    def lose_power(self) -> None:
        """Nothing survives that was not synced."""
        self.disk.lose_power(lambda: False, lambda limit: 0)

    @contextmanager
    def unable_to_sync(self, times: int = 1000) -> Iterator[None]:
        """The next syncs of directories fail."""
        left = [times]

        def fail(directory: object) -> None:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EIO, "Input/output error")
            self._sync(directory)  # type: ignore[arg-type]

        with patch.object(self.disk, "sync_directory", fail):
            yield


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with ExitStack() as stack:
        for module in (local, regular_file):
            stack.enter_context(patch.object(module, "os", made.posix))
            stack.enter_context(patch.object(module, "open", made.posix.open_file, create=True))
        LocalFileSystem().mkdirs("/data")
        yield made


def document() -> CheckpointMetadata:
    return CheckpointMetadata("0" * 32, "job", 1, 1, 1, "line", 0, 0)


def test_a_document_that_is_read_back_is_synced_before_it_counts(machine: Machine) -> None:
    fs = LocalFileSystem()
    fs.mkdirs("/data/chk-1")
    location = FileCheckpointLocation(fs, "/data/chk-1", CheckpointStorageLocationReference.get_default())
    with machine.unable_to_sync(times=1), pytest.raises(PossibleInconsistentStateError):
        location.write_metadata(document())
    data = fs.read(location.metadata_path)
    assert location.holds(data)
    machine.lose_power()
    assert fs.read(location.metadata_path) == data


def test_a_document_that_may_not_survive_is_not_said_to_be_there(machine: Machine) -> None:
    fs = LocalFileSystem()
    fs.mkdirs("/data/chk-1")
    location = FileCheckpointLocation(fs, "/data/chk-1", CheckpointStorageLocationReference.get_default())
    with machine.unable_to_sync():
        with pytest.raises(PossibleInconsistentStateError):
            location.write_metadata(document())
        with pytest.raises(StorageError):
            location.holds(fs.read(location.metadata_path))


def test_a_version_of_the_register_whose_answer_was_lost_survives_once_it_counts(machine: Machine) -> None:
    fs = LocalFileSystem()
    fs.mkdirs("/data/register")
    register = FileRegister(fs, "/data/register")
    with machine.unable_to_sync(times=1):
        writer = register.raise_token("leader")
    machine.lose_power()
    assert register.read().token == writer.token == 1


def test_a_version_of_the_register_that_may_not_survive_is_of_unknown_outcome(machine: Machine) -> None:
    fs = LocalFileSystem()
    fs.mkdirs("/data/register")
    with machine.unable_to_sync(), pytest.raises(PossibleInconsistentStateError, match="may not survive"):
        FileRegister(fs, "/data/register").raise_token("leader")


def test_a_leader_does_not_go_on_from_a_version_that_may_not_survive(machine: Machine) -> None:
    fs = LocalFileSystem()
    fs.mkdirs("/data/register")
    with machine.unable_to_sync():
        for leader in ("first", "second"):
            with pytest.raises(PossibleInconsistentStateError, match="may not survive"):
                FileRegister(fs, "/data/register").raise_token(leader)
    assert [name for name in fs.list_names("/data/register") if name.startswith("v-")] == ["v-00000000000000000001"]


def test_an_intent_that_somebody_left_unsynced_survives_once_files_are_moved_on_its_word(machine: Machine) -> None:
    output = OutputDirectory("/data/out")
    LocalFileSystem().mkdirs("/data/out/staged/ledger")
    ledger, files = CommitLedger(output, "staged"), [StagedFile("staged/a", "a")]
    with machine.unable_to_sync(), pytest.raises(HoldfastError):
        ledger.begin(1, files, files)
    assert ledger.named(1, files) == set(files)
    machine.lose_power()
    assert ledger.named(1, files) == set(files)


def test_an_identity_that_somebody_left_unsynced_survives_once_checkpoints_may_name_it(machine: Machine) -> None:
    LocalFileSystem().mkdirs("/data/out/.holdfast")
    with machine.unable_to_sync(), pytest.raises(HoldfastError):
        OutputDirectory("/data/out").ensure_identity()
    identity = OutputDirectory("/data/out").ensure_identity()
    machine.lose_power()
    assert OutputDirectory("/data/out").identity() == identity


def test_a_commit_whose_last_record_a_power_failure_takes_is_repeated(machine: Machine) -> None:
    out = OutputDirectory("/data/out")
    identity = out.ensure_identity()
    files = [StagedFile(".holdfast/one-sink/a.staged", "a")]
    LocalFileSystem().write_atomic("/data/out/.holdfast/one-sink/a.staged", b"rows")
    ledger = CommitLedger(out, ".holdfast/one-sink")
    ledger.begin(1, files, files)
    out.move(files)
    ledger.finish(1)
    assert ledger.is_done(1)
    machine.lose_power()
    assert not ledger.is_done(1), "nobody has synced the record"
    assert ledger.named(1, files) == set(files)
    out.move(files)
    out.check_moved(identity, files)
    ledger.finish(1)
    assert ledger.is_done(1)
    assert LocalFileSystem().read("/data/out/a") == b"rows"
