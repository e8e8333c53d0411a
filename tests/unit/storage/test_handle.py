"""State goes to storage and comes back, or an error says why not; nothing is ever unpickled."""

import pickle

import pytest

from holdfast.errors import CorruptFileError, FormatVersionError, NotExistError, StorageError
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.state_handle import (
    DocumentSerializer,
    FileSystemStateStorageHelper,
    IntegerResourceVersion,
    StringResourceVersion,
    decode_pointer,
    encode_document,
    encode_pointer,
)

SERIALIZER = DocumentSerializer("plan", 2, lambda plan: {"steps": plan}, lambda body: body["steps"])


@pytest.fixture
def helper(tmp_path):
    return FileSystemStateStorageHelper(LocalFileSystem(), str(tmp_path / "ha"), "plan", SERIALIZER)


def test_state_comes_back_until_it_is_discarded(helper, tmp_path):
    handle = helper.store(["a", "b"])
    assert handle.retrieve_state() == ["a", "b"]
    assert handle.get_state_size() == len((tmp_path / "ha" / handle.path.split("/")[-1]).read_bytes())
    assert handle.path.split("/")[-1].startswith("plan")
    handle.discard_state()
    handle.discard_state()
    with pytest.raises(NotExistError):
        handle.retrieve_state()


def test_each_store_has_a_file_of_its_own(helper):
    first, second = helper.store(["same"]), helper.store(["same"])
    assert first.path != second.path
    first.discard_state()
    assert second.retrieve_state() == ["same"]


def test_a_pointer_is_small_and_leads_back(helper):
    handle = helper.store(["a"] * 10_000)
    pointer = encode_pointer(handle, marked_for_deletion=True)
    assert len(pointer) <= 1024
    found, marks = decode_pointer(pointer, "node", helper)
    assert found == handle
    assert marks == {"marked_for_deletion": True}
    assert found.retrieve_state() == ["a"] * 10_000


def test_a_file_that_was_changed_or_exchanged_is_refused(helper, tmp_path):
    handle = helper.store(["a"])
    file = tmp_path / "ha" / handle.path.split("/")[-1]
    other = helper.store(["b"])
    file.write_bytes((tmp_path / "ha" / other.path.split("/")[-1]).read_bytes())
    with pytest.raises(CorruptFileError, match=handle.path):
        handle.retrieve_state()


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(["a"]), encode_document("plan", 1, {})])
def test_what_is_no_pointer_is_refused(helper, data):
    with pytest.raises(CorruptFileError, match="the-node"):
        decode_pointer(data, "the-node", helper)


def test_a_pointer_with_wrong_fields_is_refused(helper):
    for handle in ({}, {"path": 1, "size": 2, "digest": "x"}, [], "x"):
        data = encode_document("state-handle", 1, {"handle": handle, "marks": {}})
        with pytest.raises(CorruptFileError, match="the-node"):
            decode_pointer(data, "the-node", helper)


def test_a_newer_pointer_is_told_from_a_damaged_one(helper):
    with pytest.raises(FormatVersionError, match="the-node"):
        decode_pointer(encode_document("state-handle", 2, {}), "the-node", helper)


def test_state_with_wrong_fields_is_damaged_and_newer_state_is_newer():
    with pytest.raises(CorruptFileError, match="the-file"):
        SERIALIZER.from_bytes(encode_document("plan", 2, {"other": 1}), "the-file")
    with pytest.raises(FormatVersionError, match="the-file"):
        SERIALIZER.from_bytes(encode_document("plan", 3, {"steps": []}), "the-file")


def test_a_directory_that_cannot_be_written_is_told_after_ten_attempts(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    helper = FileSystemStateStorageHelper(LocalFileSystem(), str(tmp_path / "file"), "plan", SERIALIZER)
    with pytest.raises(StorageError, match="10 attempts"):
        helper.store(["a"])


def test_versions_of_what_does_not_exist():
    assert not IntegerResourceVersion.not_existing().is_existing()
    assert IntegerResourceVersion.value_of(0).is_existing()
    assert not StringResourceVersion.not_existing().is_existing()
    assert StringResourceVersion.value_of("7").get_value() == "7"
    with pytest.raises(ValueError, match="0 or more"):
        IntegerResourceVersion.value_of(-1)
    with pytest.raises(ValueError, match="not_existing"):
        StringResourceVersion.value_of("-1")
