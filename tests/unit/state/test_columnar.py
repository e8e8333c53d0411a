"""What `columnar` does not read: entries that nobody asks for, lists that are only added to, batches that are over."""

import pytest

from holdfast.errors import CorruptFileError
from holdfast.state import ColumnarStateBackend, HashMapStateBackend
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.hashmap import backend as keyed_backend
from holdfast.state.layout import StateLayout
from holdfast.state.run_file import forget_runs
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from tests.contract.compacting import compact_layers

COUNT = ValueStateDescriptor("count", "bigint")
LIST = ListStateDescriptor("list", "string")
MAP = MapStateDescriptor("map", "bigint", "string")


@pytest.fixture
def epochs(tmp_path):
    return StateEpochs(ColumnarStateBackend(), str(tmp_path))


@pytest.fixture
def decoded(monkeypatch):
    """How many rows were decoded."""
    counts = []
    decode = StateLayout.decode

    def counting(self, table, rows):
        counts.append(len(rows))
        return decode(self, table, rows)

    monkeypatch.setattr(StateLayout, "decode", counting)
    return counts


def test_one_entry_of_a_large_map_is_read_alone(epochs, decoded):
    with epochs.epoch() as task:
        task.state("hot", MAP).put_all({number: f"v{number}" for number in range(50_000)})
    with epochs.epoch() as task:
        task.state("hot", MAP).put(7, "seven")
        task.state("hot", MAP).remove(8)
        task.state("hot", MAP).remove(9)
    decoded.clear()
    with epochs.epoch() as task:
        state = task.state("hot", MAP)
        assert [state.get(number) for number in (0, 7, 8, 49_999, 50_000)] == ["v0", "seven", None, "v49999", None]
        assert not state.contains(9)
        state.put(8, "again")
        state.remove(0)
        assert (state.get(8), state.contains(0), state.is_empty()) == ("again", False, False)
    assert sum(decoded) <= 5
    with epochs.epoch() as task:
        assert len(dict(task.state("hot", MAP).items())) == 49_998
        assert sum(decoded) > 49_998


def test_a_large_map_that_was_emptied_is_empty(epochs):
    with epochs.epoch() as task:
        task.state("a", MAP).put_all(dict.fromkeys(range(1000), "x"))
    with epochs.epoch() as task:
        for number in range(1000):
            task.state("a", MAP).remove(number)
        assert task.state("a", MAP).is_empty()
    with epochs.epoch() as task:
        assert task.state("a", MAP).is_empty()
        assert list(task.state("a", MAP).keys()) == []
        task.state("a", MAP).put(1, "y")
    with epochs.epoch() as task:
        assert dict(task.state("a", MAP).items()) == {1: "y"}
        task.state("a", MAP).clear()
        task.state("a", MAP).put(2, "z")
    compact_layers(epochs, 0, 100)
    with epochs.epoch() as task:
        assert dict(task.state("a", MAP).items()) == {2: "z"}


def test_adding_to_a_list_reads_nothing(epochs, tmp_path):
    with epochs.epoch() as task:
        task.state("a", LIST).add_all(["x"] * 1000)
    [path] = tmp_path.glob("shared/*.run")
    whole = path.read_bytes()
    # Whoever reads an element notices that the file is damaged.
    path.write_bytes(whole[:3000] + b"?" + whole[3001:])
    forget_runs()
    with epochs.epoch() as task:
        task.state("a", LIST).add("y")
        task.state("a", LIST).add_all(["z"])
    with pytest.raises(CorruptFileError), epochs.task() as task:
        list(task.state("a", LIST).get())
    path.write_bytes(whole)
    forget_runs()
    with epochs.epoch() as task:
        assert list(task.state("a", LIST).get()) == ["x"] * 1000 + ["y", "z"]


def test_what_a_batch_has_read_is_given_up_and_what_it_has_changed_is_kept(epochs, monkeypatch):
    monkeypatch.setattr(keyed_backend, "_KEYS_BETWEEN_CHECKS", 100)
    keys = [f"key-{number}" for number in range(1000)]
    with epochs.epoch() as task:
        for number, key in enumerate(keys):
            task.state(key, COUNT).update(number)
            task.state(key, LIST).add(key)
    task = epochs.open()
    backend = task.backend
    states = [backend.get_partitioned_state(None, None, descriptor) for descriptor in (COUNT, LIST, MAP)]
    for start in range(0, 1000, 50):
        backend.release()
        for number, slot in enumerate(task.prepare(keys[start : start + 50]), start=start):
            backend.slot = slot
            assert states[0].value() == number
            if number % 10 == 0:
                states[0].update(-number)
                states[1].add("more")
                states[2].put(number, "entry")
            if number % 25 == 0:
                states[2].clear()
        assert len(backend._loaded) <= 400
    epochs.succeed(task)
    epochs.complete()
    with epochs.epoch() as task:
        for number, key in enumerate(keys):
            changed = number % 10 == 0
            assert task.state(key, COUNT).value() == (-number if changed else number)
            assert list(task.state(key, LIST).get()) == ([key, "more"] if changed else [key])
            entries = {number: "entry"} if changed and number % 25 else {}
            assert dict(task.state(key, MAP).items()) == entries


def test_the_hashmap_gives_up_what_does_not_fit_within_an_epoch_too(tmp_path, monkeypatch):
    monkeypatch.setattr(keyed_backend, "_KEYS_BETWEEN_CHECKS", 100)
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), configuration={"state.backend.hashmap.memory": "20 kb"})
    keys = [f"key-{number}" for number in range(2000)]
    with epochs.epoch() as task:
        for number, key in enumerate(keys):
            task.state(key, COUNT).update(number)
    task = epochs.open()
    state = task.backend.get_partitioned_state(None, None, COUNT)
    for start in range(0, 2000, 100):
        task.backend.release()
        for number, slot in enumerate(task.prepare(keys[start : start + 100]), start=start):
            task.backend.slot = slot
            assert state.value() == number
        assert len(task.backend._loaded) <= 500
    epochs.fail(task)


def test_each_backend_goes_on_from_what_the_other_has_written(tmp_path):
    backends = [HashMapStateBackend(), ColumnarStateBackend()]
    epochs = StateEpochs(backends[0], str(tmp_path))
    total = ValueStateDescriptor("total", "bigint")
    listed = ListStateDescriptor("listed", "bigint")
    mapped = MapStateDescriptor("mapped", "bigint", "string")
    for epoch in range(6):
        epochs.backend = backends[epoch % 2]
        with epochs.task() as task:
            for key in ("a", "b"):
                assert task.state(key, total).value() == (sum(range(epoch)) if epoch else None)
                assert list(task.state(key, listed).get() or ()) == list(range(epoch))
                assert dict(task.state(key, mapped).items()) == {n: str(n) for n in range(epoch) if n % 3}
                task.state(key, total).update(sum(range(epoch + 1)))
                task.state(key, listed).add(epoch)
                task.state(key, mapped).put(epoch, str(epoch))
                if epoch % 3 == 0:
                    task.state(key, mapped).remove(epoch)
        epochs.complete()
