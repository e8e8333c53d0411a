"""A state that could not be loaded ends its task, also if a user function catches the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.errors import StateError
from holdfast.state import ColumnarStateBackend, HashMapStateBackend, ValueStateDescriptor
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from holdfast.types import Row, Types


class Brittle:
    """Can be written and not read."""

    def __reduce__(self) -> Any:
        return _break, ()


def _break() -> NoReturn:
    raise ValueError("what was pickled here cannot be read any more")


COUNT = ValueStateDescriptor("count", "bigint")
BRITTLE = ValueStateDescriptor("brittle", Types.ROW_NAMED(["value"], [Types.PICKLED_BYTE_ARRAY()]))


@pytest.fixture(params=[HashMapStateBackend, ColumnarStateBackend])
def epochs(request: pytest.FixtureRequest, tmp_path: Path) -> StateEpochs:
    """A job of which an epoch has written three keys, and whose process was started anew."""
    epochs = StateEpochs(request.param(), str(tmp_path))
    with epochs.epoch() as task:
        for number, key in enumerate("abc"):
            task.state(key, COUNT).update(number)
        task.state("b", BRITTLE).update(Row(value=Brittle()))
    STATE_CACHE.clear()
    return epochs


def swallow(task: Any, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be read any more"):
        task.state(key, BRITTLE).value()


def test_no_key_of_the_task_gets_the_state_of_another_one(epochs: StateEpochs) -> None:
    task = epochs.open()
    swallow(task, "b")
    for key in "dca":
        with pytest.raises(StateError, match="the task must fail"):
            task.state(key, COUNT).value()


def test_nothing_that_the_task_did_is_written(epochs: StateEpochs) -> None:
    before = epochs.version
    with pytest.raises(StateError, match="cannot be read any more"), epochs.epoch() as task:
        task.state("a", COUNT).update(100)
        swallow(task, "b")
    assert epochs.version == before
    assert epochs.values(["a", "b", "c"], COUNT) == [0, 1, 2]


def test_the_next_task_knows_nothing_of_it(epochs: StateEpochs) -> None:
    task = epochs.open()
    swallow(task, "b")
    task.backend.commit_cache()
    with epochs.epoch() as task:
        task.state("d", COUNT).update(3)
    assert epochs.values(["a", "b", "c", "d"], COUNT) == [0, 1, 2, 3]
