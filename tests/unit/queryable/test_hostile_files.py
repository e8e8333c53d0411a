"""Files and servers that name modules: who only reads state imports none of them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable.client.client_core import scan_head
from holdfast.queryable.replica.checkpoint_view import CheckpointView, ViewBuilder
from holdfast.queryable.wire.frame import Frame, FrameType, to_header
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.types.serializer import TypeSerializer, snapshot_from_json
from tests.programs.written_job import WrittenJob

MODULE = "a_module_that_somebody_left_here"


class Words(TypeSerializer[str]):
    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be imported, and must not be."""
    (tmp_path / f"{MODULE}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(MODULE, None)


def written(root: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointView:
    """A checkpoint whose state was written by a serializer of that module, as a query server sees it."""
    monkeypatch.setattr("holdfast.types.serializer.class_path", lambda cls: f"{MODULE}:{cls.__name__}")
    state = ValueStateDescriptor("words", Words())
    state.set_queryable("words")
    job = WrittenJob(root / "jobs", [state])
    job.epoch_of([("ada", lambda states: states.words.update("hello"))])
    monkeypatch.undo()
    return ViewBuilder(job.directory, lambda groups: (KeyGroupRange(0, groups - 1),)).build(job.metadata(1), None)


def test_a_server_imports_no_module_that_a_file_names(
    trap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = written(tmp_path, monkeypatch).states["words"]
    assert MODULE in str(view.description.type)
    layers = [layer for layer in view.layers if len(layer)]
    assert layers[0].values is not None and layers[0].values.to_pylist() == [b"hello"]
    assert MODULE not in sys.modules


def test_a_client_imports_no_module_that_a_server_names(
    trap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    view = written(tmp_path, monkeypatch)
    description: dict[str, Any] = view.states["words"].description.to_json()
    assert MODULE in str(description) and base64.b64decode(description["arrow"])
    head = scan_head(Frame(FrameType.BATCH, 1, to_header(view.identity | {"description": description}), b""))
    assert head.description.value_type.ddl == "binary" and head.description.explanation
    assert MODULE not in sys.modules


def test_the_trap_would_have_gone_off(trap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StateMigrationError):
        snapshot_from_json({"class": f"{MODULE}:Words", "version": 1, "content": None})
    assert MODULE in sys.modules
