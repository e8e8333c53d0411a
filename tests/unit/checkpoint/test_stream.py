"""Streams of operators end up in the document or in files, and come back."""

import json

import pytest

from holdfast.checkpoint.storage import (
    FileCheckpointStreamFactory,
    InlineStateHandle,
    MemoryCheckpointStreamFactory,
    stream_handle_from_json,
)
from holdfast.errors import CorruptFileError, StateError, StorageError
from holdfast.storage.job_directory import FileName
from tests.unit.checkpoint.support import LocalJob


@pytest.fixture
def directory(tmp_path):
    return LocalJob(tmp_path).directory


@pytest.fixture
def factory(directory):
    return FileCheckpointStreamFactory(directory, lambda: FileName.new(3, 7, 0, "op", 1), threshold=10)


def write(factory, data):
    stream = factory.create_checkpoint_state_output_stream()
    for byte in data:
        stream.write(bytes([byte]))
    assert stream.get_pos() == len(data)
    return stream.close_and_get_handle()


@pytest.mark.parametrize("data", [b"x", b"0123456789", b"0123456789a", b"\x00" * 5000])
def test_what_was_written_comes_back_through_the_document(factory, directory, data):
    handle = write(factory, data)
    stored = json.loads(json.dumps(handle.to_json()))
    found = stream_handle_from_json(stored, directory)
    assert found.open_input_stream().read() == data
    assert found.get_state_size() == len(data)
    names = directory.fs.list_names(directory.taskowned_dir)
    assert len(names) == (len(data) > 10)
    assert all(FileName.parse(name).epoch == 7 for name in names)
    found.discard_state()
    assert directory.fs.list_names(directory.taskowned_dir) == []


def test_an_empty_stream_has_no_handle_and_a_closed_one_leaves_nothing(factory, directory):
    assert write(factory, b"") is None
    stream = factory.create_checkpoint_state_output_stream()
    stream.write(b"x" * 100)
    stream.close()
    stream.close()
    with pytest.raises(StateError, match="closed"):
        stream.write(b"y")
    assert directory.fs.list_names(directory.taskowned_dir) == []


def test_a_damaged_file_is_refused(factory, directory):
    handle = write(factory, b"x" * 100)
    path = directory.absolute(handle.path)
    directory.fs.delete(path)
    directory.fs.write_atomic(path, b"x" * 99 + b"y")
    with pytest.raises(CorruptFileError, match=handle.path):
        handle.open_input_stream()


def test_memory_has_a_limit():
    factory = MemoryCheckpointStreamFactory(10)
    assert isinstance(write(factory, b"0123456789"), InlineStateHandle)
    with pytest.raises(StorageError, match="larger than the maximum"):
        write(factory, b"0123456789a")


@pytest.mark.parametrize(
    "value", [{}, {"inline": "%"}, {"inline": 5}, {"path": 1, "size": 1, "digest": "x"}, {"path": "x"}]
)
def test_what_is_no_handle_is_refused(directory, value):
    with pytest.raises(ValueError, match="not the handle"):
        stream_handle_from_json(value, directory)
