"""What a process keeps between epochs: followed, corrected or thrown away, and never believed without its run ids."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations

import pytest

from holdfast.state import (
    HashMapStateBackend,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.options import HASHMAP_MEMORY
from holdfast.state.probe import KeyProbe
from holdfast.state.version import STATE_CACHE, StateCache
from holdfast.testing.state_contract.state_access_contract import JOB, StateEpochs, WindowSerializer
from holdfast.testing.state_contract.state_evolution_contract import CodeSerializer, PriceSerializer
from holdfast.types.row import Row
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types
from tests.contract.compacting import compact_layers

COUNT = ValueStateDescriptor("count", "bigint")
LIST = ListStateDescriptor("list", "bigint")
MAP = MapStateDescriptor("map", "string", "bigint")
NAME = (JOB, "operator", 0, 7)


@pytest.fixture(autouse=True)
def nothing_kept():
    STATE_CACHE.clear()
    yield
    STATE_CACHE.clear()


@pytest.fixture
def epochs(tmp_path):
    return StateEpochs(HashMapStateBackend(), str(tmp_path))


@pytest.fixture
def elsewhere():
    """Runs something in another process, as far as the cache is concerned."""
    other = StateCache()

    class Elsewhere:
        def __enter__(self):
            STATE_CACHE.swap(other)

        def __exit__(self, *error):
            STATE_CACHE.swap(other)

    return Elsewhere()


def set_count(epochs, **counts):
    with epochs.epoch() as task:
        for key, count in counts.items():
            task.state(key, COUNT).update(count)


def kept():
    """The store that this process has kept, which stays where it is."""
    store = STATE_CACHE.take(NAME)
    if store is not None:
        STATE_CACHE.put(NAME, store, 1 << 40)
    return store


def test_what_a_task_decoded_is_kept_under_the_runs_that_it_has(epochs):
    set_count(epochs, a=1)
    set_count(epochs, b=2)
    assert kept().content == epochs.version.lineage
    assert sorted(kept().keys) == ["a", "b"]


def test_two_tasks_never_share_what_is_kept(epochs):
    set_count(epochs, a=1)
    first, second = epochs.open(), epochs.open()
    first.state("a", COUNT).update(100)
    assert second.state("a", COUNT).value() == 1
    epochs.fail(first)
    epochs.fail(second)


def test_a_failed_task_keeps_nothing(epochs):
    set_count(epochs, a=1)
    epochs.fail(epochs.open())
    assert kept() is None


def test_following_reads_only_the_keys_that_are_known(epochs, elsewhere):
    set_count(epochs, a=1, b=1)
    with elsewhere:
        set_count(epochs, a=2, c=3)
    with epochs.epoch():
        pass
    assert sorted(kept().keys) == ["a", "b"]
    assert epochs.values(["a", "b", "c"], COUNT) == [2, 1, 3]


def test_new_keys_are_looked_up_only_where_runs_may_have_them(epochs, elsewhere, monkeypatch):
    looked_up = []
    find = KeyProbe.find
    monkeypatch.setattr(KeyProbe, "find", lambda probe, *rows: looked_up.append(1) or find(probe, *rows))
    set_count(epochs, a=1)
    set_count(epochs, a=2, b=1)
    set_count(epochs, a=3, c=1)
    assert not looked_up  # the process has seen every key since the state was empty
    with elsewhere:
        set_count(epochs, d=4)
    set_count(epochs, a=4, e=1)
    assert looked_up
    assert epochs.values("abcde", COUNT) == [4, 1, 1, 4, 1]


def test_a_list_that_was_replaced_elsewhere_is_replaced_here(epochs, elsewhere):
    with epochs.epoch() as task:
        for key in "abc":
            task.state(key, LIST).add_all([1, 2])
            task.state(key, MAP).put_all({"x": 1, "y": 2})
    with elsewhere, epochs.epoch() as task:
        task.state("a", LIST).update([3])
        task.state("b", LIST).clear()
        task.state("c", LIST).add(4)
        task.state("a", MAP).clear()
        task.state("a", MAP).put("z", 3)
        task.state("b", MAP).remove("x")
    with elsewhere, epochs.epoch() as task:
        task.state("a", LIST).add(5)
        task.state("b", LIST).add(6)
    with epochs.epoch() as task:
        assert [list(task.state(key, LIST).get()) for key in "abc"] == [[3, 5], [6], [1, 2, 4]]
        assert [dict(task.state(key, MAP).items()) for key in "ab"] == [{"z": 3}, {"y": 2}]


def test_what_was_merged_meanwhile_is_read_again_also_when_newer_runs_came_after_it(epochs, elsewhere):
    """A process knows the first of three merged runs; the newest run, after these, is about few keys."""
    set_count(epochs, **dict.fromkeys("abcdefgh", 0))
    set_count(epochs, a=1, b=1, c=1)
    with elsewhere:
        set_count(epochs, a=2)
        set_count(epochs, b=2)
        compact_layers(epochs, 0, 4)
        set_count(epochs, d=2)
        set_count(epochs, c=2)
    assert epochs.values("abcdefgh", COUNT) == [2, 2, 2, 2, 0, 0, 0, 0]


def test_after_following_it_is_not_known_what_the_newest_run_was_about(epochs, elsewhere):
    """Following a run that is lost later must not be undone by the keys of the run before it."""
    set_count(epochs, a=1, b=1)
    set_count(epochs, b=2)
    before = epochs.version
    with elsewhere:
        set_count(epochs, a=3)
    assert epochs.values(["a"], COUNT) == [3]
    epochs.version = before
    assert epochs.values(["a", "b"], COUNT) == [1, 2]


def test_what_is_ahead_by_one_run_is_corrected_and_not_read_again(epochs):
    set_count(epochs, a=1, b=1, c=1)
    before = epochs.version
    set_count(epochs, b=100, d=100)
    epochs.version = before
    with epochs.epoch() as task:
        store = task.backend._loaded
        assert len(store) == 4
        assert [task.state(key, COUNT).value() for key in "abcd"] == [1, 1, 1, None]


def test_what_is_ahead_by_two_runs_is_thrown_away(epochs):
    set_count(epochs, a=1, b=1)
    before = epochs.version
    set_count(epochs, a=2)
    set_count(epochs, b=2)
    epochs.version = before
    with epochs.epoch() as task:
        assert len(task.backend._loaded) == 0
    assert epochs.values(["a", "b"], COUNT) == [1, 1]


def test_a_state_that_one_task_does_not_ask_for_is_completed_for_the_next(epochs, elsewhere):
    with epochs.epoch() as task:
        task.state("a", COUNT).update(1)
        task.state("a", LIST).add(1)
    set_count(epochs, b=1)
    with elsewhere, epochs.epoch() as task:
        task.state("a", LIST).add(2)
        task.state("b", LIST).add(3)
    assert epochs.values(["a", "b"], COUNT) == [1, 1]
    with epochs.epoch() as task:
        assert list(task.state("a", LIST).get()) == [1, 2]
        assert list(task.state("b", LIST).get()) == [3]


def test_a_program_that_declares_a_state_anew_does_not_get_what_was_kept(epochs):
    """The same process, another version of the job: nothing was written under the name yet."""
    with epochs.epoch() as task:
        assert task.state("a", ValueStateDescriptor("s", "bigint")).value() is None
        task.state("a", COUNT).update(1)
    with epochs.epoch() as task:
        state = task.state("a", ValueStateDescriptor("s", "string"))
        state.update("text")
    with epochs.epoch() as task:
        assert task.state("a", ValueStateDescriptor("s", "string")).value() == "text"


def berths(harbour):
    @dataclass(frozen=True)
    class Berth:
        number: int

        @property
        def name(self):
            return f"{harbour} {self.number}"

    return Berth


@pytest.mark.parametrize(
    "described",
    [
        lambda kind: ValueStateDescriptor("s", kind),
        lambda kind: ListStateDescriptor("s", kind),
        lambda kind: MapStateDescriptor("s", "string", kind),
        lambda kind: ValueStateDescriptor("s", Types.TUPLE([Types.LIST(to_type(kind))])),
    ],
    ids=["value", "list", "map", "within"],
)
def test_a_class_that_was_changed_reads_what_another_one_of_its_name_has_kept(epochs, described):
    """A cell of a notebook that has a class is run again, and the worker is the same."""

    def read(state):
        if isinstance(state, MapState):
            return state.get("k")
        [found] = state.get() if isinstance(state, ListState) else [state.value()]
        return found[0][0] if type(found) is tuple else found

    old, new = berths("Oslo"), berths("Kiel")
    with epochs.epoch() as task:
        state = task.state("a", described(old))
        if isinstance(state, MapState):
            state.put("k", old(1))
        elif isinstance(state, ListState):
            state.add(old(1))
        else:
            state.update(old(1) if described(old).type_info == to_type(old) else ([old(1)],))
    with epochs.epoch() as task:
        found = read(task.state("a", described(new)))
    assert type(found) is new
    assert found.name == "Kiel 1"


def test_keys_are_of_the_class_that_the_program_has_now(tmp_path):
    old, new = berths("Oslo"), berths("Kiel")
    before = StateEpochs(HashMapStateBackend(), str(tmp_path), key_type=old)
    with before.epoch() as task:
        task.state(old(1), COUNT).update(1)
    after = StateEpochs(HashMapStateBackend(), str(tmp_path), key_type=new)
    after.version = before.version
    with after.epoch() as task:
        task.state(new(1), COUNT)
        assert [key.name for key in task.backend.get_keys("count")] == ["Kiel 1"]


def test_instants_that_were_kept_are_read_without_a_zone_by_a_program_that_declares_them_so(epochs):
    with epochs.epoch() as task:
        task.state("a", ValueStateDescriptor("s", Types.INSTANT())).update(datetime(2024, 2, 29, tzinfo=UTC))
    with epochs.epoch() as task:
        found = task.state("a", ValueStateDescriptor("s", Types.SQL_TIMESTAMP())).value()
    assert found == datetime(2024, 2, 29)


NARROW, WIDE = "struct<n: bigint, name: string>", "struct<more: bigint, name: string, n: bigint>"
OF_ONE_NAME = {
    "value": ValueStateDescriptor("s", NARROW),
    "value of wider rows": ValueStateDescriptor("s", WIDE),
    "list": ListStateDescriptor("s", NARROW),
    "list of wider rows": ListStateDescriptor("s", WIDE),
    "map": MapStateDescriptor("s", "string", NARROW),
    "map by numbers": MapStateDescriptor("s", "bigint", NARROW),
    "in windows": ValueStateDescriptor("s", NARROW),
    "price": ValueStateDescriptor("s", PriceSerializer()),
    "code": ValueStateDescriptor("s", CodeSerializer(["red"])),
}


class OneState:
    """One declaration of a state, of which key "a" has one value."""

    def __init__(self, name):
        self.descriptor = OF_ONE_NAME[name]
        self.namespace = (7, WindowSerializer()) if name == "in windows" else (None, None)
        row = Row(more=2, name="one", n=1) if "wider" in name else Row(n=1, name="one")
        self.value = {"price": Decimal("1.50"), "code": "red"}.get(name, row)
        self.map_key = {"map": "k", "map by numbers": 5}.get(name)

    def put(self, task):
        state = task.state("a", self.descriptor, *self.namespace)
        if self.map_key is not None:
            state.put(self.map_key, self.value)
        else:
            (state.add if isinstance(self.descriptor, ListStateDescriptor) else state.update)(self.value)

    def is_there(self, task):
        state = task.state("a", self.descriptor, *self.namespace)
        if self.map_key is not None:
            return dict(state.items()) == {self.map_key: self.value}
        return state.value() == self.value if hasattr(state, "value") else list(state.get()) == [self.value]


@pytest.mark.parametrize(("before", "after"), list(permutations(OF_ONE_NAME, 2)))
def test_what_a_program_has_kept_is_nothing_to_one_that_declares_another_state_of_the_name(
    epochs, elsewhere, before, after
):
    """The only epoch of a program is lost, and the job begins again with another one, elsewhere first."""
    with epochs.task() as task:
        OneState(before).put(task)
    epochs.abandon()
    with elsewhere, epochs.epoch() as task:
        OneState(after).put(task)
    with epochs.epoch() as task:
        assert OneState(after).is_there(task)


def test_known_and_new_keys_may_come_in_one_batch_in_any_order_and_more_than_once(epochs):
    set_count(epochs, a=1, b=2, c=3, d=4)
    STATE_CACHE.clear()
    with epochs.epoch() as task:
        state = task.backend.get_state(COUNT)
        task.prepare(["d", "b"])
        batch = ["c", "b", "new", "c", "a", "d", "new", "a"]
        found = {}
        for key, slot in zip(batch, task.prepare(batch), strict=True):
            assert found.setdefault(key, slot) == slot
            task.backend.slot = slot
            state.update((state.value() or 0) + 10)
        assert len(set(found.values())) == 5
    assert epochs.values(["a", "b", "c", "d", "new"], COUNT) == [21, 12, 23, 14, 20]


def test_keys_that_have_nothing_left_are_forgotten_once_there_are_many(epochs):
    names = [f"key-{number}" for number in range(3000)]
    with epochs.epoch() as task:
        state = task.backend.get_state(COUNT)
        for slot in task.prepare(names):
            task.backend.slot = slot
            state.update(1)
    with epochs.epoch() as task:
        state = task.backend.get_state(COUNT)
        for slot in task.prepare(names[:2500]):
            task.backend.slot = slot
            state.clear()
        task.state(names[2600], LIST).add(7)
    assert sorted(kept().keys) == names[2500:] or sorted(kept().keys) == sorted(names[2500:])
    with epochs.epoch() as task:
        assert [task.state(name, COUNT).value() for name in (names[0], names[2600])] == [None, 1]
        assert list(task.state(names[2600], LIST).get()) == [7]


def test_keys_that_were_only_looked_for_are_forgotten_as_well(epochs):
    set_count(epochs, a=1)
    for number in range(3):
        with epochs.epoch() as task:
            task.state("a", COUNT)
            task.prepare([f"{number}-{other}" for other in range(1500)])
    assert len(kept()) < 2000
    assert epochs.values(["a"], COUNT) == [1]


class TestBudget:
    def test_what_does_not_fit_is_not_kept(self, tmp_path):
        epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), configuration={HASHMAP_MEMORY.key: "10 kb"})
        with epochs.epoch() as task:
            for number in range(500):
                task.state(f"key-{number}", COUNT).update(number)
        assert kept() is None
        assert epochs.values(["key-499"], COUNT) == [499]

    def test_the_keys_of_the_last_epoch_are_kept_if_only_they_fit(self, tmp_path):
        epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), configuration={HASHMAP_MEMORY.key: "100 kb"})
        names = [f"key-{number}" for number in range(1000)]
        with epochs.task() as task:
            for name in names[:300]:
                task.state(name, COUNT).update(1)
        epochs.complete()
        with epochs.epoch() as task:
            task.prepare(names)
            for name in names[200:250]:
                task.state(name, COUNT).update(2)
        assert sorted(kept().keys) == names[200:250]
        before = epochs.version
        with epochs.epoch() as task:
            task.state(names[210], COUNT).update(3)
        epochs.version = before
        expected = [1, 2, 2, None]
        assert epochs.values([names[0], names[210], names[220], names[900]], COUNT) == expected

    def test_the_least_recently_used_goes_first(self):
        class Content:
            def __init__(self, size):
                self.size = size

            def estimated_bytes(self):
                return self.size

        cache = StateCache()
        assert all(cache.put(name, Content(40), 100) for name in "ab")
        a = cache.take("a")
        assert cache.put("a", a, 100)
        assert cache.put("c", Content(50), 100)
        assert cache.take("b") is None
        assert not cache.put("a", Content(101), 100)
        assert cache.take("a") is None
        assert cache.take("c").size == 50
        assert len(cache) == 0

    def test_the_estimate_is_in_the_order_of_what_is_there(self, epochs):
        with epochs.epoch() as task:
            for number in range(200):
                task.state(f"key-{number}", LIST).update(list(range(1000)))
        assert 200 * 1000 * 8 < kept().estimated_bytes() < 200 * 1000 * 80


def clear_many(task, names):
    state = task.backend.get_state(COUNT)
    for slot in task.prepare(names):
        task.backend.slot = slot
        state.clear()


def test_an_epoch_that_fails_after_keys_were_forgotten_is_undone_all_the_same(epochs):
    names = [f"key-{number}" for number in range(3000)]
    with epochs.epoch() as task:
        for name in names:
            task.state(name, COUNT).update(1)
    with epochs.task() as task:
        clear_many(task, names[1::2])
        task.state(names[2000], COUNT).update(100)
    assert len(kept()) == 1500
    epochs.abandon()
    assert epochs.values([names[0], names[1], names[2000]], COUNT) == [1, 1, 1]


def test_a_state_that_was_left_behind_stays_so_when_keys_are_forgotten(epochs, elsewhere):
    names = [f"key-{number}" for number in range(3000)]
    with epochs.epoch() as task:
        for name in names:
            task.state(name, COUNT).update(1)
        task.state(names[2999], LIST).add(1)
    with elsewhere, epochs.epoch() as task:
        task.state("late", LIST).add(2)
    with epochs.epoch() as task:
        task.state("late", COUNT).update(1)
        clear_many(task, names[:2500])
    assert len(kept()) == 501
    with epochs.epoch() as task:
        assert list(task.state("late", LIST).get()) == [2]
        assert list(task.state(names[2999], LIST).get()) == [1]
