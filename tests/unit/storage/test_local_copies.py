"""Copies of run files on a disk of this host: bounded, checked when they enter, and never needed."""

import os
from pathlib import Path

import pytest

from holdfast.datastream.sinks import ParquetFileSink
from holdfast.errors import CorruptFileError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.task.worker_process import with_local_copies
from holdfast.state import HashMapStateBackend
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.run_file import check_run, forget_runs
from holdfast.state.version import STATE_CACHE
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.local_copies import LocalCopies
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from tests.stories import ledger
from tests.stories.local import Program, run


def refuse_bad(view, path):
    if bytes(view).startswith(b"bad"):
        raise CorruptFileError(path, 0, "it is bad.")


def copies_in(place, budget=100):
    (place / "origin").mkdir(exist_ok=True)
    return LocalCopies(LocalFileSystem(), str(place / "copies"), budget, refuse_bad)


def sizes(place):
    return sorted(path.stat().st_size for path in (place / "copies").iterdir())


def write(place, name, content):
    path = place / "origin" / name
    path.write_bytes(content)
    return str(path)


def test_a_file_is_read_from_its_copy_once_it_has_one(tmp_path):
    copies = copies_in(tmp_path)
    path = write(tmp_path, "a", b"content")
    assert bytes(copies.mmap(path)) == b"content"
    Path(path).unlink()
    assert bytes(copies.mmap(path)) == b"content"
    copies.drop_copy(path)
    with pytest.raises(Exception, match="not"):
        copies.mmap(path)


def test_what_this_host_writes_it_has_a_copy_of(tmp_path):
    copies = copies_in(tmp_path)
    path = str(tmp_path / "origin" / "a")
    copies.write_state(path, [b"con", memoryview(b"tent")])
    assert Path(path).read_bytes() == b"content"
    Path(path).unlink()
    assert bytes(copies.mmap(path)) == b"content"


def test_copies_stay_within_their_budget_and_the_least_recently_used_go(tmp_path):
    copies = copies_in(tmp_path, budget=100)
    paths = [write(tmp_path, str(n), bytes([n]) * 40) for n in range(3)]
    held = [copies.mmap(paths[0]), copies.mmap(paths[1])]
    for path, used in ((paths[0], 2), (paths[1], 1)):
        os.utime(copies._copy_of(path), (used, used))
    held.append(copies.mmap(paths[2]))
    assert sizes(tmp_path) == [40, 40]
    assert copies._copy_of(paths[0]).exists()
    assert not copies._copy_of(paths[1]).exists()
    # Who has it mapped goes on reading it.
    assert [bytes(view)[0] for view in held] == [0, 1, 2]


def test_whether_a_mapping_alone_keeps_a_file_is_asked_of_this_host_and_no_other(tmp_path):
    class Away(LocalFileSystem):
        def exists(self, path):
            assert path.endswith("2"), "a store that is far away, or down, holds up each task that asks it"
            return True

    (tmp_path / "origin").mkdir()
    copies = LocalCopies(Away(), str(tmp_path / "copies"), 100, refuse_bad)
    paths = [write(tmp_path, str(n), bytes([n]) * (101 if n == 2 else 60)) for n in range(3)]
    held = [copies.mmap(path) for path in paths]
    assert [copies.keeps_mapped(path) for path in paths] == [False, True, True], "the last one never had a copy"
    assert len(held) == 3


def test_a_file_larger_than_the_budget_is_mapped_where_it_is(tmp_path):
    copies = copies_in(tmp_path, budget=10)
    path = write(tmp_path, "a", b"x" * 11)
    assert bytes(copies.mmap(path)) == b"x" * 11
    copies.write_state(str(tmp_path / "origin" / "b"), b"x" * 11)
    assert not (tmp_path / "copies").exists()


def test_a_damaged_file_does_not_enter(tmp_path):
    copies = copies_in(tmp_path)
    path = write(tmp_path, "a", b"bad")
    with pytest.raises(CorruptFileError):
        copies.mmap(path)
    assert sizes(tmp_path) == []


def test_a_disk_that_takes_nothing_is_done_without(tmp_path, caplog):
    copies = copies_in(tmp_path)
    (tmp_path / "copies").write_text("not a directory")
    path = write(tmp_path, "a", b"content")
    assert bytes(copies.mmap(path)) == b"content"
    assert "Could not keep a copy of" in caplog.text


def test_a_directory_of_another_user_is_not_used(tmp_path, monkeypatch, caplog):
    copies = copies_in(tmp_path)
    path = write(tmp_path, "a", b"content")
    copies.mmap(path)
    copies._copy_of(path).write_bytes(b"planted")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert bytes(copies.mmap(path)) == b"content"
    assert "belongs to another user" in caplog.text


# In a job.


@pytest.mark.parametrize(
    ("root", "options", "has_copies"),
    [
        ("/data/checkpoints", {}, False),
        ("/data/checkpoints", {"state.local-cache.directory": "/scratch"}, True),
        ("s3://bucket/checkpoints", {}, True),
    ],
)
def test_what_cannot_be_mapped_where_it_is_always_has_copies(root, options, has_copies):
    origin = LocalFileSystem()
    assert (with_local_copies(origin, root, Configuration(options)) is not origin) is has_copies


def count_words(place, options, epochs):
    program = Program()
    program.source("words", "k string").key_by("k").count("n").uid("n").sink_to(
        ParquetFileSink(str(place / "out"))
    ).uid("out")
    return run(program, place / "job", epochs, options)


def cold():
    STATE_CACHE.clear()
    forget_runs()


def test_a_job_reads_its_state_from_copies_and_does_not_need_them(tmp_path):
    copies = tmp_path / "copies"
    options = {"state.local-cache.directory": str(copies), "state.local-cache.size": "20 kb"}
    epochs = [{"words": [(f"w{i % 7}",) for i in range(20)]} for _ in range(6)]
    assert count_words(tmp_path, options, epochs) is JobStatus.SUSPENDED
    [own] = copies.iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    kept = list(own.iterdir())
    assert kept
    assert sum(path.stat().st_size for path in kept) <= 20 * 1024
    assert all(path.suffix == ".copy" for path in kept)
    # Each run on its own and whole, as the checks see them.
    for path in kept:
        check_run(LocalFileSystem().mmap(str(path)), str(path))
    counts = {}
    for key, number in ledger.read(tmp_path / "out"):
        counts.setdefault(key, []).append(number)
    assert all(sorted(numbers) == list(range(1, len(numbers) + 1)) for numbers in counts.values())
    assert sum(map(len, counts.values())) == 120


def test_a_copy_that_was_damaged_on_the_disk_is_fetched_again(tmp_path):
    count = ValueStateDescriptor("n", "bigint")
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path / "origin"))
    epochs.files = LocalCopies(LocalFileSystem(), str(tmp_path / "copies"), 10**9, check_run)
    with epochs.task() as task:
        task.state("a", count).update(1)
    epochs.complete()
    [copy] = (tmp_path / "copies").iterdir()
    content = bytearray(copy.read_bytes())
    content[100] ^= 1
    copy.unlink()
    copy.write_bytes(content)
    cold()
    with pytest.raises(CorruptFileError), epochs.task() as task:
        task.state("a", count).value()
    with epochs.task() as task:
        assert task.state("a", count).value() == 1
