"""Objects of an S3 server are files: whole or not at all, never replaced, and told truly when an answer is lost."""

import re
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoint.claim import _copy
from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.entry_map import ENTRY_MAP_FORMAT, EntryMap
from holdfast.ha.shared_directory import FileSystemStateHandleStore
from holdfast.kernel.configuration import Configuration
from holdfast.storage.file_system import join
from holdfast.storage.object_store import ObjectStoreFileSystem, S3Options, object_store_for, s3_options
from holdfast.storage.register import FencedRegister, FileRegister
from holdfast.storage.scheme import file_system_for
from holdfast.storage.versioned_document import FileDocument
from holdfast.testing import S3Server
from holdfast.testing.state_handle_store_contract import StateHandleStoreBackend, StateHandleStoreContract
from tests.contract.register_contract import Gate, RegisterContract, RegisterSite, completing, ids
from tests.contract.test_state_handle_stores import EntryMapHarness, Striker
from tests.stories.gated_file_system import GatedFileSystem

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def root(server: S3Server) -> str:
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    server.make_bucket(bucket)
    return f"s3://{bucket}/jobs"


@pytest.fixture
def fs(server: S3Server, root: str) -> ObjectStoreFileSystem:
    return object_store_for(root, server.options)


def test_what_was_written_is_read_back_whole_or_in_part(fs, root):
    path = join(root, "deep", "er", "file")
    fs.write_atomic(path, b"0123456789")
    assert fs.read(path) == b"0123456789"
    assert fs.read(path, 3) == b"3456789"
    assert fs.read(path, 3, 4) == b"3456"
    assert fs.read(path, 8, 100) == b"89"
    assert fs.read(path, 10) == fs.read(path, 10, 5) == fs.read(path, 99, 1) == fs.read(path, 2, 0) == b""
    assert bytes(fs.mmap(path)) == b"0123456789"
    status = fs.status(path)
    assert (status.name, status.size, status.is_directory) == ("file", 10, False)
    assert status.mtime > 1_600_000_000_000


def test_an_object_is_read_like_a_file_in_any_order(fs, root):
    path = join(root, "large")
    data = bytes(range(256)) * 20_000
    fs.write_atomic(path, [data[:1000], memoryview(data)[1000:]])
    with fs.open_input(path) as file:
        assert file.read(10) == data[:10]
        assert file.seek(-10, 2) == len(data) - 10
        assert file.read() == data[-10:]
        assert file.read() == b""
        file.seek(4_500_000)
        assert file.read(300_000) == data[4_500_000:4_800_000]
        file.seek(0)
        assert file.read() == data


def test_an_empty_object_is_an_object(fs, root):
    fs.write_atomic(join(root, "empty"), b"")
    assert fs.read(join(root, "empty")) == bytes(fs.mmap(join(root, "empty"))) == b""
    assert fs.exists(join(root, "empty"))
    with fs.open_input(join(root, "empty")) as file:
        assert file.read() == b""


def test_a_stream_appears_at_its_end_or_not_at_all(fs, root):
    path = join(root, "stream")
    with fs.open_output(path) as out:
        out.write(b"one ")
        assert not fs.exists(path)
        out.write(b"two")
    assert fs.read(path) == b"one two"
    with pytest.raises(RuntimeError), fs.open_output(join(root, "half")) as out:
        out.write(b"half")
        raise RuntimeError("the writer failed")
    assert fs.list_names(root) == ["stream"]


def test_an_existing_object_is_never_overwritten(fs, root):
    path, other = join(root, "file"), join(root, "other")
    fs.write_atomic(path, b"first")
    fs.write_atomic(other, b"other")
    for write in (fs.write_atomic, fs.create_exclusive):
        with pytest.raises(AlreadyExistError, match="file"):
            write(path, b"first")
    with pytest.raises(AlreadyExistError), fs.open_output(path) as out:
        out.write(b"third")
    with pytest.raises(AlreadyExistError):
        fs.rename(other, path)
    assert fs.read(path) == b"first"
    assert fs.read(other) == b"other"


def test_of_many_writers_exactly_one_creates_the_object(server, root):
    outcomes = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        mine = object_store_for(root, server.options)
        barrier.wait()
        try:
            mine.create_exclusive(join(root, "only"), str(number).encode())
            outcomes.append(number)
        except AlreadyExistError:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    assert object_store_for(root, server.options).read(join(root, "only")) == str(outcomes[0]).encode()


def test_directories_are_what_names_have_in_common(fs, root):
    assert not fs.exists(root)
    assert fs.list(root) == fs.list_names(root) == []
    fs.mkdirs(join(root, "a"))
    names = ["b", "a/x", "a/deep/y", "ab", "with space #%20?ü"]
    for name in names:
        fs.write_atomic(join(root, *name.split("/")), name.encode())
    assert [(entry.name, entry.size, entry.is_directory) for entry in fs.list(root)] == [
        ("a", 0, True),
        ("ab", 2, False),
        ("b", 1, False),
        ("with space #%20?ü", 18, False),
    ]
    assert sorted(fs.list_names(join(root, "a"))) == ["deep", "x"]
    assert fs.status(join(root, "a")).is_directory
    assert fs.exists(join(root, "a")) and fs.exists(root) and fs.exists(root.removesuffix("/jobs"))
    assert not fs.exists(join(root, "a", "dee"))
    assert fs.read(join(root, names[-1])) == names[-1].encode()
    assert fs.delete(join(root, "a", "x")) and fs.delete(join(root, "a", "deep", "y"))
    assert not fs.exists(join(root, "a"))
    assert fs.delete_directory(join(root, "a"))


def test_a_listing_of_more_than_one_page_is_whole(fs, root, server):
    fs.write_atomic(join(root, "n-0000"), b"")
    names = [f"n-{number:04d}" for number in range(1, 1005)]
    for name in names:
        fs._put(f"jobs/{name}", b"", "nonce")
    assert fs.list_names(root) == ["n-0000", *names]


def test_moving_and_deleting(fs, root):
    fs.write_atomic(join(root, "old"), b"content")
    fs.rename(join(root, "old"), join(root, "sub", "new"))
    assert fs.read(join(root, "sub", "new")) == b"content"
    assert not fs.exists(join(root, "old"))
    assert fs.delete(join(root, "sub", "new"))
    assert fs.delete(join(root, "sub", "new")), "it does not find out whether an object was there"
    assert not fs.exists(join(root, "sub", "new"))
    fs.write_atomic(join(root, "one"), b"1")
    moves = [(join(root, "one"), join(root, "two")), (join(root, "gone"), join(root, "three"))]
    moved, missing = fs.rename_all(moves)
    assert moved is None and isinstance(missing, NotExistError)
    assert fs.list_names(root) == ["two"]


def test_what_is_adopted_is_copied_because_an_object_has_one_name(fs, root):
    fs.write_atomic(join(root, "run"), b"rows")
    with pytest.raises(StorageError, match="Copy it"):
        fs.link(join(root, "run"), join(root, "second"))
    _copy(fs, join(root, "run"), fs, join(root, "second"))
    assert fs.read(join(root, "second")) == b"rows"


def test_what_is_missing_is_told(fs, root, server):
    for ask in (fs.read, fs.mmap, fs.status, fs.open_input):
        with pytest.raises(NotExistError, match="nothing"):
            ask(join(root, "nothing"))
    nowhere = object_store_for("s3://no-such-bucket/x", server.options)
    for act in (nowhere.list, nowhere.exists, nowhere.read, lambda path: nowhere.create_exclusive(path, b"")):
        with (
            pytest.raises(StorageError, match="no such bucket") if act != nowhere.read else pytest.raises(StorageError)
        ):
            act("s3://no-such-bucket/x")


@pytest.mark.parametrize("path", ["s3://other/x", "/local", "s3://{bucket}/a//b", "s3://{bucket}/a/../b"])
def test_a_path_that_is_not_of_the_bucket_is_refused(fs, root, path):
    bucket = root.split("/")[2]
    for act in (fs.read, fs.delete, fs.list, fs.mkdirs, lambda name: fs.create_exclusive(name, b"x")):
        with pytest.raises(ConfigurationError):
            act(path.format(bucket=bucket))


# Settings.


def test_the_scheme_chooses_the_store_and_environment_variables_its_settings(server, root, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    fs = file_system_for(root)
    fs.write_atomic(join(root, "file"), b"x")
    assert object_store_for(root, server.options).read(join(root, "file")) == b"x"
    assert file_system_for(join(root, "elsewhere")) is fs
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert file_system_for(root) is not fs


def test_options_win_over_environment_variables(server, root, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "https://127.0.0.1:1")
    options = s3_options(
        Configuration(
            {
                "s3.endpoint": server.endpoint,
                "s3.access-key": "key",
                "s3.secret-key": "secret",
                "s3.region": "eu-central-1",
                "s3.path.style.access": "true",
            }
        )
    )
    assert "secret" not in repr(options)
    assert object_store_for(root, options).list(root) == []


def test_settings_that_make_no_sense_are_told():
    with pytest.raises(ConfigurationError, match=r"s3\.path\.style\.access"):
        Configuration({"s3.path.style.access": "yes"})
    with pytest.raises(ConfigurationError, match="http://"):
        object_store_for("s3://bucket", S3Options(endpoint="minio:9000"))
    for uri in ("s3://", "s3:///x", "file:///x"):
        with pytest.raises(ConfigurationError, match="has no bucket"):
            object_store_for(uri)


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[s3\]'"):
        object_store_for("s3://bucket", S3Options())


def test_a_store_that_ignores_the_condition_is_refused_before_anything_is_written():
    with S3Server(honours_conditions=False) as careless:
        bucket = f"careless-{uuid.uuid4().hex[:12]}"
        careless.make_bucket(bucket)
        fs = object_store_for(f"s3://{bucket}/x", careless.options)
        for write in (fs.create_exclusive, fs.write_atomic):
            with pytest.raises(StorageError, match="If-None-Match"):
                write(f"s3://{bucket}/x/file", b"data")
        with pytest.raises(StorageError, match="If-None-Match"):
            FileRegister(fs, f"s3://{bucket}/x/register").raise_token("leader")
        assert fs.list(f"s3://{bucket}") == []


def test_the_probe_is_made_once_and_removed_and_readers_make_none(server, root):
    fs = object_store_for(root, server.options)
    before = len(server.requests)
    assert not fs.exists(join(root, "a"))
    assert not [request for request in server.requests[before:] if request.startswith("PUT")]
    for name in ("a", "b"):
        fs.write_atomic(join(root, name), b"x")
    puts = [request for request in server.requests[before:] if request.startswith("PUT")]
    assert len(puts) == 4 and sum("holdfast-probe" in put for put in puts) == 2
    assert fs.list_names(root) == ["a", "b"]


# Lost answers.


class LossyProxy:
    """Stands before a server and spoils the puts of objects whose name begins with ``lost`` or that of a version.

    Args:
        target: The endpoint of the server.
        passes_on: Whether the request reaches the server before its answer is lost.
        times: How many puts are spoiled; others are passed on.
    """

    def __init__(self, target: str, *, passes_on: bool, times: int) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._passes_on = passes_on
        self.left = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            head, body = self._request(client)
            if not head:
                return
            is_struck = (
                head.startswith(b"PUT") and re.search(rb"/(lost|v-)[^/]* ", head.split(b"\r\n")[0]) and self.left > 0
            )
            if is_struck:
                self.left -= 1
                if not self._passes_on:
                    return
            with socket.create_connection(self._target) as server:
                server.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
                answer = b""
                while chunk := server.recv(65536):
                    answer += chunk
            if not is_struck:
                client.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    @staticmethod
    def _request(client: socket.socket) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = client.recv(65536)
            if not chunk:
                return b"", b""
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while len(body) < int(lengths[0] if lengths else 0):
            body += client.recv(65536)
        return head + b"\r\n\r\n", body


@pytest.fixture
def lossy(server: S3Server) -> Iterator[Callable[..., tuple[LossyProxy, S3Options]]]:
    proxies = []

    def make(*, passes_on: bool, times: int = 1, max_retries: int = 0) -> tuple[LossyProxy, S3Options]:
        proxy = LossyProxy(server.endpoint, passes_on=passes_on, times=times)
        proxies.append(proxy)
        return proxy, replace(server.options, endpoint=proxy.endpoint, max_retries=max_retries)

    yield make
    for proxy in proxies:
        proxy.close()


def test_a_write_whose_answer_was_lost_is_recognized(lossy, fs, root):
    proxy, options = lossy(passes_on=True)
    object_store_for(root, options).create_exclusive(join(root, "lost"), b"mine")
    assert proxy.left == 0
    assert fs.read(join(root, "lost")) == b"mine"


def test_a_write_that_the_client_repeats_is_not_taken_for_anothers(lossy, fs, root):
    proxy, options = lossy(passes_on=True, times=2, max_retries=3)
    object_store_for(root, options).write_atomic(join(root, "lost"), b"mine")
    assert proxy.left == 0
    assert fs.read(join(root, "lost")) == b"mine"


def test_another_writer_with_the_same_content_is_not_taken_for_oneself(lossy, fs, root):
    fs.create_exclusive(join(root, "lost"), b"same")
    _, options = lossy(passes_on=True, times=1, max_retries=3)
    with pytest.raises(AlreadyExistError):
        object_store_for(root, options).create_exclusive(join(root, "lost"), b"same")


def test_a_request_that_may_still_be_under_way_is_told_as_unknown(lossy, fs, root):
    _, options = lossy(passes_on=False, times=10)
    struck = object_store_for(root, options)
    with pytest.raises(PossibleInconsistentStateError, match="lost"):
        struck.create_exclusive(join(root, "lost"), b"mine")
    with pytest.raises(StorageError, match="not known"):
        struck.write_atomic(join(root, "lost"), b"mine")
    assert not fs.exists(join(root, "lost"))


def test_a_register_survives_lost_answers(lossy, fs, root):
    proxy, options = lossy(passes_on=True, times=3)
    register = FileRegister(object_store_for(root, options), join(root, "register"))
    writer = register.raise_token("leader")
    for number in (1, 2, 3):
        writer.write(completing(number))
    assert proxy.left == 0
    assert ids(FileRegister(fs, join(root, "register")).read()) == [1, 2, 3]


def test_a_store_that_does_not_answer_is_an_error_in_time(root):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        options = S3Options(
            f"http://127.0.0.1:{deaf.getsockname()[1]}", "a", "b", timeout=timedelta(seconds=0.3), max_retries=0
        )
        fs = object_store_for(root, options)
        for act in (fs.read, fs.list, fs.exists, fs.delete, lambda path: fs.write_atomic(path, b"x")):
            with pytest.raises(StorageError, match="Check the store"):
                act(join(root, "file"))


# What is built on it.


class ObjectStoreSite(RegisterSite):
    def __init__(self, fs: ObjectStoreFileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def open(self, gate: Gate | None = None) -> FencedRegister:
        return FileRegister(self._fs if gate is None else GatedFileSystem(self._fs, gate), self._directory)


@pytest.mark.timeout(300)
class TestFileRegister(RegisterContract):
    ahead = (1, 2, 66)

    @pytest.fixture
    def new_site(self, fs: ObjectStoreFileSystem, root: str) -> Callable[[], RegisterSite]:
        return lambda: ObjectStoreSite(fs, join(root, uuid.uuid4().hex))


class StruckObjectStore(ObjectStoreFileSystem):
    """The connection of one process."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        super().__init__(bucket, options)
        self.striker = Striker()
        self._honours_conditions = True  # shown by others

    def list_names(self, path: str) -> list[str]:
        self.striker.read()
        return super().list_names(path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        create = super().create_exclusive
        self.striker.write(lambda: create(path, data))


class ObjectStoreHarness(EntryMapHarness):
    def __init__(self, root: str, options: S3Options) -> None:
        super().__init__()
        self._root = root
        self._options = options
        self.reset()

    def reset(self) -> None:
        self._directory = join(self._root, uuid.uuid4().hex)

    def shared(self) -> FileDocument[EntryMap]:
        return FileDocument(object_store_for(self._root, self._options), self._directory, ENTRY_MAP_FORMAT)

    def open(self, storage: Any, lock_identity: str | None = None) -> Any:
        fs = StruckObjectStore(self._root.split("/")[2], self._options)
        store: Any = FileSystemStateHandleStore(
            fs, self._directory, storage, lock_identity=lock_identity, leadership=self.terms
        )
        self.strikers[id(store)] = fs.striker
        return store


class TestFileSystemStateHandleStore(StateHandleStoreContract):
    machine_examples = 5

    @pytest.fixture
    def store_backend(self, server: S3Server, root: str) -> Iterator[StateHandleStoreBackend]:
        yield ObjectStoreHarness(root, server.options)
