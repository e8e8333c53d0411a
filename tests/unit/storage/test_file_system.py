"""Files appear whole or not at all, are never overwritten, and errors say what to do."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.storage.file_system import base_name, is_absolute, join, parent
from holdfast.storage.local import LocalFileSystem, final_name, temporary_name
from holdfast.storage.scheme import file_system_for


@pytest.fixture
def fs():
    return LocalFileSystem()


def test_what_was_written_is_read_back_whole_or_in_part(fs, tmp_path):
    path = str(tmp_path / "deep" / "er" / "file")
    fs.write_atomic(path, b"0123456789")
    assert fs.read(path) == b"0123456789"
    assert fs.read(path, 3) == b"3456789"
    assert fs.read(path, 3, 4) == b"3456"
    assert fs.read(path, 8, 100) == b"89"
    assert bytes(fs.mmap(path)) == b"0123456789"
    with fs.open_input(path) as file:
        assert file.read() == b"0123456789"
    assert fs.status(path).size == 10


def test_chunks_and_streams_are_written_in_order(fs, tmp_path):
    fs.write_atomic(str(tmp_path / "chunks"), iter([b"ab", memoryview(b"cd"), b""]))
    assert fs.read(str(tmp_path / "chunks")) == b"abcd"
    with fs.open_output(str(tmp_path / "stream")) as out:
        out.write(b"one ")
        assert not fs.exists(str(tmp_path / "stream"))
        out.write(b"two")
    assert fs.read(str(tmp_path / "stream")) == b"one two"


def test_a_uri_means_the_same_as_its_path(fs, tmp_path):
    uri = (tmp_path / "with space").as_uri()
    fs.write_atomic(uri, b"x")
    assert (tmp_path / "with space").read_bytes() == b"x"
    assert fs.exists(uri)
    assert fs.exists(str(tmp_path / "with space"))


def test_an_existing_file_is_never_overwritten(fs, tmp_path):
    path = str(tmp_path / "file")
    fs.write_atomic(path, b"first")
    for write in (fs.write_atomic, fs.create_exclusive):
        with pytest.raises(AlreadyExistError, match="file"):
            write(path, b"second")
    with pytest.raises(AlreadyExistError), fs.open_output(path) as out:
        out.write(b"third")
    fs.write_atomic(str(tmp_path / "other"), b"other")
    with pytest.raises(AlreadyExistError):
        fs.rename(str(tmp_path / "other"), path)
    with pytest.raises(AlreadyExistError):
        fs.link(str(tmp_path / "other"), path)
    assert fs.read(path) == b"first"
    assert sorted([entry.name for entry in tmp_path.iterdir()]) == ["file", "other"]


def test_a_stream_that_fails_leaves_nothing(fs, tmp_path):
    with pytest.raises(RuntimeError), fs.open_output(str(tmp_path / "file")) as out:
        out.write(b"half")
        raise RuntimeError("the writer failed")
    assert [entry.name for entry in tmp_path.iterdir()] == []


def test_a_directory_that_goes_away_while_a_file_is_written_is_a_failure_of_the_storage(fs, tmp_path):
    with (
        pytest.raises(StorageError, match="was removed meanwhile"),
        fs.open_output(str(tmp_path / "mount" / "out")) as out,
    ):
        out.write(b"half of it")
        (tmp_path / "mount").rename(tmp_path / "gone")
    assert not (tmp_path / "mount").exists()


def test_a_mapping_outlives_the_file(fs, tmp_path):
    path = str(tmp_path / "file")
    fs.write_atomic(path, b"still here")
    view = fs.mmap(path)
    fs.delete(path)
    assert bytes(view) == b"still here"
    fs.write_atomic(str(tmp_path / "empty"), b"")
    assert bytes(fs.mmap(str(tmp_path / "empty"))) == b""


def test_of_many_threads_exactly_one_creates_a_file(fs, tmp_path):
    winners = []
    barrier = threading.Barrier(8)

    def create(number):
        barrier.wait()
        for file in range(20):
            try:
                fs.create_exclusive(str(tmp_path / f"file-{file}"), f"{number}".encode())
                winners.append((file, number))
            except AlreadyExistError:
                pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file for file, _ in winners) == list(range(20))
    for file, number in winners:
        assert fs.read(str(tmp_path / f"file-{file}")) == f"{number}".encode()


def test_deleting_twice_and_asking_for_what_is_absent(fs, tmp_path):
    path = str(tmp_path / "file")
    fs.write_atomic(path, b"")
    assert fs.delete(path)
    assert not fs.delete(path)
    assert not fs.exists(path)
    assert not fs.exists(path + "/below")
    for read in (fs.read, fs.mmap, fs.open_input, fs.status):
        with pytest.raises(NotExistError, match="file"):
            read(path)
    with pytest.raises(NotExistError):
        fs.rename(path, path + "2")
    with pytest.raises(NotExistError):
        fs.link(path, path + "2")
    assert fs.list(str(tmp_path / "nowhere")) == []
    assert fs.list_names(str(tmp_path / "nowhere")) == []


def test_a_directory_is_deleted_only_when_it_is_empty(fs, tmp_path):
    directory = str(tmp_path / "a" / "b")
    fs.mkdirs(directory)
    fs.mkdirs(directory)
    fs.write_atomic(join(directory, "file"), b"1")
    assert not fs.delete_directory(directory)
    fs.delete(join(directory, "file"))
    assert fs.delete_directory(directory)
    assert fs.delete_directory(directory)


def test_a_listing_has_names_sizes_and_directories(fs, tmp_path):
    fs.write_atomic(str(tmp_path / "b"), b"123")
    fs.write_atomic(str(tmp_path / "a" / "x"), b"")
    listed = fs.list(str(tmp_path))
    assert [(entry.name, entry.size, entry.is_directory) for entry in listed] == [("a", 0, True), ("b", 3, False)]
    assert sorted(fs.list_names(str(tmp_path))) == ["a", "b"]
    assert abs(listed[1].mtime - (tmp_path / "b").stat().st_mtime * 1000) < 2


def test_a_link_is_a_second_name_that_stays_when_the_first_goes(fs, tmp_path):
    fs.write_atomic(str(tmp_path / "one"), b"content")
    fs.link(str(tmp_path / "one"), str(tmp_path / "deep" / "two"))
    fs.delete(str(tmp_path / "one"))
    assert fs.read(str(tmp_path / "deep" / "two")) == b"content"


def test_a_file_in_the_way_of_a_directory_is_named(fs, tmp_path):
    fs.write_atomic(str(tmp_path / "file"), b"")
    with pytest.raises(StorageError, match="is a file"):
        fs.mkdirs(str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="file"):
        fs.write_atomic(str(tmp_path / "file" / "below"), b"")


def test_where_nobody_may_write_the_error_says_so(fs):
    with pytest.raises(StorageError, match=r"/sys/holdfast.*: "):
        fs.mkdirs("/sys/holdfast/checkpoints")


def test_a_file_system_without_hard_links_is_refused_with_the_reason(fs, tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for write in (fs.create_exclusive, fs.write_atomic):
        with pytest.raises(StorageError, match="refuses hard links"):
            write(str(tmp_path / "file"), b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == []


def test_an_answer_of_the_server_that_says_nothing_is_an_unknown_outcome(fs, tmp_path, monkeypatch):
    def time_out(source, target):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(os, "link", time_out)
    with pytest.raises(PossibleInconsistentStateError, match="not known whether"):
        fs.create_exclusive(str(tmp_path / "file"), b"x")


FULL_DISK = """
import os, sys
from holdfast.errors import StorageError
from holdfast.storage.scheme import LocalFileSystem
fs = LocalFileSystem()
directory = sys.argv[1]
fs.write_atomic(directory + "/small", b"x" * 1000)
for write in (fs.write_atomic, fs.create_exclusive):
    try:
        write(directory + "/large", b"x" * 1_000_000)
    except StorageError as error:
        assert "disk is full" in str(error) and "/large" in str(error), error
    else:
        raise SystemExit("no error")
assert os.listdir(directory) == ["small"], os.listdir(directory)
fs.write_atomic(directory + "/again", b"y")
print("told")
"""


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path):
    """On a real tiny file system, in a mount namespace of its own."""
    script = f"mount -t tmpfs -o size=64k none '{tmp_path}' && exec '{sys.executable}' -c \"$1\" '{tmp_path}'"
    run = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", FULL_DISK],
        capture_output=True,
        text=True,
        check=False,
    )
    if "told" not in run.stdout and ("unshare" in run.stderr or "mount" in run.stderr):
        pytest.skip(f"no mount namespace here: {run.stderr.strip()}")
    assert run.stdout == "told\n", run.stderr


def test_a_scheme_that_is_not_known_and_a_host_are_refused():
    with pytest.raises(ConfigurationError, match="'ftp'"):
        file_system_for("ftp://server/dir")
    with pytest.raises(ConfigurationError, match="names a host"):
        file_system_for("file://server/dir")
    with pytest.raises(ConfigurationError, match="empty"):
        file_system_for("")
    assert isinstance(file_system_for("file:///data"), LocalFileSystem)
    assert isinstance(file_system_for("/data"), LocalFileSystem)


def test_temporary_names_lead_back_to_their_own():
    assert final_name(temporary_name("v-1.run")) == "v-1.run"
    assert temporary_name("a") != temporary_name("a")
    for other in ("file", ".hidden", ".x.tmp", "x.tmp"):
        assert final_name(other) is None


def test_paths_are_taken_apart():
    assert join("/a/", "b", "c") == "/a/b/c"
    assert join("/", "b") == "/b"
    assert parent("/a/b/") == "/a"
    assert parent("/a") == "/"
    assert parent("s3://bucket/a") == "s3://bucket"
    assert base_name("/a/b/") == "b"
    assert is_absolute("/a")
    assert is_absolute("s3://b/c")
    assert is_absolute("file:/a")
    assert not is_absolute("shared/a")
