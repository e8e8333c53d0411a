"""Ids of checkpoints start at 1, ascend, and are never used twice."""

import threading

import pytest

from holdfast.checkpoint.completed_checkpoint import RegisterCheckpointIDCounter, StandaloneCheckpointIDCounter
from holdfast.errors import FencedError
from holdfast.storage.register import EmbeddedRegister
from tests.contract.register_contract import completing


@pytest.fixture(params=["standalone", "register"])
def counter(request):
    if request.param == "standalone":
        return StandaloneCheckpointIDCounter()
    return RegisterCheckpointIDCounter(EmbeddedRegister().raise_token("leader"))


def test_they_start_at_one_and_ascend(counter):
    counter.start()
    assert (counter.get(), counter.get_last()) == (1, 0)
    assert [counter.get_and_increment() for _ in range(25)] == list(range(1, 26))
    assert (counter.get(), counter.get_last()) == (26, 25)
    counter.shutdown("FINISHED")


def test_the_count_can_be_set_forward_only(counter):
    counter.set_count(1337)
    assert counter.get_and_increment() == 1337
    assert counter.get_and_increment() == 1338
    with pytest.raises(ValueError, match="1339"):
        counter.set_count(5)


def test_threads_never_get_the_same_one(counter):
    seen = []

    def draw():
        seen.extend([counter.get_and_increment() for _ in range(200)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 801))


def test_leaders_never_get_the_same_one_and_a_deposed_one_soon_none():
    register, seen = EmbeddedRegister(), []
    old = RegisterCheckpointIDCounter(register.raise_token("old"))
    seen += [old.get_and_increment() for _ in range(3)]
    new = RegisterCheckpointIDCounter(register.raise_token("new"))
    seen += [new.get_and_increment() for _ in range(30)]
    with pytest.raises(FencedError):
        for _ in range(20):
            seen.append(old.get_and_increment())
    assert len(seen) == len(set(seen))


def test_blocks_are_reserved_along_with_other_writes():
    register = EmbeddedRegister()
    writer = register.raise_token("leader")
    counter = RegisterCheckpointIDCounter(writer, block=4)
    versions = set()
    for number in range(1, 41):
        assert counter.get_and_increment() == number
        counter.reserved(writer.write(lambda state, number=number: counter.reserve(completing(number)(state))))
        versions.add(writer.state.version)
        assert register.read().next_checkpoint_id > number
    assert max(versions) - min(versions) <= 40
