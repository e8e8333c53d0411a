"""What is particular to the register in files: damage, holes, leftovers, faults."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from holdfast.errors import (
    CorruptFileError,
    FencedError,
    FormatVersionError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.storage.local import LocalFileSystem, temporary_name
from holdfast.storage.register import FileRegister
from holdfast.storage.state_handle import encode_document
from tests.contract.register_contract import completing, ids


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "register"


@pytest.fixture
def register(directory):
    return FileRegister(LocalFileSystem(), str(directory))


def version_file(directory, version):
    return directory / f"v-{version:020d}"


def test_only_the_window_of_versions_is_kept(register, directory):
    writer = register.raise_token("leader")
    for number in range(1, 201):
        writer.write(completing(number, retained=3))
    assert len(list(directory.glob("v-*"))) == 64
    assert (directory / "trimmed").read_bytes() == b"Version 1 of the register was deleted.\n"


def test_a_bit_flipped_anywhere_in_the_newest_version_is_told_with_the_file(register, directory):
    register.raise_token("leader").write(completing(1))
    newest = version_file(directory, 2)
    whole = newest.read_bytes()
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        newest.write_bytes(bytes(damaged))
        with pytest.raises(CorruptFileError, match=newest.name):
            register.read()
        with pytest.raises(CorruptFileError, match=newest.name):
            register.raise_token("another")
    newest.write_bytes(whole)
    assert ids(register.read()) == [1]


def test_a_register_of_a_newer_version_is_told_so(register, directory):
    register.raise_token("leader")
    version_file(directory, 2).write_bytes(encode_document("register", 9, {}))
    with pytest.raises(FormatVersionError, match="version 9"):
        register.read()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "1"},
        {"token": -1},
        {"checkpoints": {}},
        {"checkpoints": [{"checkpoint_id": 1}]},
        {"checkpoints": [1]},
        {"history": [1]},
        {"raised": [[1]]},
        {"terminal": 5},
        {"surplus": 1},
        {"next_checkpoint_id": 0},
    ],
)
def test_a_field_of_a_wrong_type_is_damage(register, directory, changes):
    register.raise_token("leader")
    fields = {
        "version": 2, "token": 1, "next_checkpoint_id": 1, "checkpoints": [], "terminal": None,
        "notified": 0, "owner": "x", "history": ["a", "b"], "raised": [[1, 1]],
    }  # fmt: skip
    version_file(directory, 2).write_bytes(encode_document("register", 1, fields | changes))
    with pytest.raises(CorruptFileError, match="register is missing or wrong"):
        register.read()


def test_versions_that_were_deleted_by_hand_are_told(register, directory):
    writer = register.raise_token("leader")
    writer.write(completing(1))
    version_file(directory, 1).unlink()
    with pytest.raises(StorageError, match="by hand"):
        register.read()


def test_a_register_that_was_removed_stops_its_leader(register, directory):
    writer = register.raise_token("leader")
    for number in range(1, 5):
        writer.write(completing(number))
    for file in directory.iterdir():
        file.unlink()
    with pytest.raises((FencedError, PossibleInconsistentStateError)):
        writer.write(completing(5))


def test_what_a_killed_writer_left_is_removed_by_the_next_leader(register, directory):
    first = register.raise_token("leader")
    first.write(completing(1))
    leftover = directory / temporary_name("v-00000000000000000003")
    leftover.write_bytes(b"half")
    later = directory / temporary_name("v-00000000000000000009")
    later.write_bytes(b"half")
    register.raise_token("next")
    assert not leftover.exists()
    assert later.exists(), "it may belong to a leader with a higher token"


def test_an_old_version_in_a_hole_is_removed_and_never_read(register, directory):
    writer = register.raise_token("leader")
    writer.write(completing(1))
    hole = version_file(directory, 2).read_bytes()
    for number in range(2, 200):
        writer.write(completing(number))
    version_file(directory, 2).write_bytes(hole)
    assert len(ids(register.read())) == 199
    register.raise_token("next")
    assert not version_file(directory, 2).exists()


@pytest.mark.parametrize(
    ("spec", "error", "found"),
    [
        ("before:pointer.write=raise", fault.FaultInjectedError, [1]),
        ("after:pointer.write=raise", PossibleInconsistentStateError, [1, 2]),
        ("lost:pointer.write=raise", None, [1, 2]),
        ("before:pointer.write=enospc", StorageError, [1]),
        ("after:pointer.write=enospc", PossibleInconsistentStateError, [1, 2]),
    ],
)
def test_faults_at_the_pointer_are_told_truly(register, spec, error, found):
    writer = register.raise_token("leader")
    writer.write(completing(1))
    fault.install(spec)
    try:
        if error is None:
            assert ids(writer.write(completing(2))) == found
        else:
            with pytest.raises(error):
                writer.write(completing(2))
    finally:
        fault.clear()
    assert ids(register.read()) == found


def test_only_writes_of_pointers_arrive_at_the_fault_point(register):
    fault.install("before:pointer.write:99=raise")
    try:
        writer = register.raise_token("leader")
        writer.write(lambda state: replace(state, next_checkpoint_id=11))
        assert fault.arrivals("pointer.write") == 0
        writer.write(completing(1))
        assert fault.arrivals("pointer.write") == 1
    finally:
        fault.clear()


KILLED = """
import sys
from holdfast.storage.register import FileRegister
from holdfast.storage.scheme import LocalFileSystem
from tests.contract.register_contract import completing
writer = FileRegister(LocalFileSystem(), sys.argv[1]).raise_token("victim")
writer.write(completing(1))
print("one", flush=True)
writer.write(completing(2))
print("two", flush=True)
"""


@pytest.mark.parametrize(("moment", "found"), [("before", [1]), ("after", [1, 2]), ("lost", [1, 2])])
def test_a_kill_at_the_pointer_leaves_the_old_or_the_new_version(register, directory, moment, found):
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(directory)],
        env=os.environ | {"HOLDFAST_FAULT": f"{moment}:pointer.write:2=kill"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (-9, "one\n")
    assert ids(register.read()) == found
    assert ids(register.raise_token("next").write(completing(3))) == [*found, 3]


def test_a_leader_that_slept_while_the_register_was_removed_is_fenced_and_leaves_nothing(register, directory):
    sleeper = register.raise_token("sleeper")
    for number in range(1, 5):
        sleeper.write(completing(number))
    shutil.rmtree(directory)
    with pytest.raises(FencedError, match="went back"):
        sleeper.write(completing(5))
    assert list(directory.glob("v-*")) == []
    assert register.raise_token("successor").state.version == 1


def test_a_leader_that_slept_while_the_register_was_begun_anew_changes_nothing(register, directory):
    sleeper = register.raise_token("sleeper")
    for number in range(1, 5):
        sleeper.write(completing(number))
    shutil.rmtree(directory)
    successor = register.raise_token("successor")
    for number in range(1, 5):
        successor.write(completing(10 + number))
    with pytest.raises(FencedError, match="begun anew"):
        sleeper.write(completing(5))
    successor.write(completing(15))
    assert ids(register.read())[-1] == 15


def test_it_is_known_at_start_whether_the_directory_keeps_writers_apart(register, directory):
    class Careless(LocalFileSystem):
        def create_exclusive(self, path, data):
            self.delete(path)
            super().create_exclusive(path, data)

    register.require_exclusive_creation()
    assert list(directory.iterdir()) == []
    with pytest.raises(StorageError, match="could not be kept apart"):
        FileRegister(Careless(), str(directory)).require_exclusive_creation()
