"""A model of state handle stores for Hypothesis: any history of writes, crashes and lost answers.

The model knows of every name what an entry may be: a set of texts, with None for "not there". A write that ended well
or was refused leaves one possibility, one whose answer got lost, or during which the process died, leaves two; the
next read decides between them. Ground truth of the contract: whoever reads a pointer finds its state.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.errors import (
    AlreadyExistError,
    FencedError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.testing.contract.state_handle_store_backend import (
    FaultMoment,
    FlakyStorage,
    ProcessDied,
    StateHandleStoreBackend,
    Store,
    die,
    fail_storage,
)

_numbers = itertools.count()
_processes = st.integers(0, 1)
_names = st.sampled_from(["a", "b"])
_faults = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(list(FaultMoment)), st.integers(0, 3)),
    st.sampled_from(["discard fails", "dies before discard", "dies after discard"]),
)
Fault = tuple[FaultMoment, int] | str | None


class StateHandleStoreMachine(RuleBasedStateMachine):
    """Two processes, of which one leads, work on two entries."""

    def __init__(self, backend: StateHandleStoreBackend, directory: Path) -> None:
        super().__init__()
        self._backend = backend
        self._texts = itertools.count(1)
        backend.reset()
        self._storage = FlakyStorage(directory / f"example-{next(_numbers)}")
        self._leader = 0
        self._terms = 1
        self._identities = ["process-0", "process-1"]
        backend.elect(self._identities[0])
        self._stores: list[Store] = [backend.open(self._storage, identity) for identity in self._identities]
        self._possible: dict[str, set[str | None]] = {"a": {None}, "b": {None}}
        self._locked: dict[str, set[int]] = {"a": set(), "b": set()}  # who may hold a lock
        self._orphans_allowed = False

    @rule(process=_processes, name=_names, fault=_faults)
    def add(self, process: int, name: str, fault: Fault) -> None:
        """Add an entry."""
        text = f"text {next(self._texts)}"
        possible = self._possible[name]
        outcome = self._try(process, fault, lambda store: store.add_and_lock(name, text))
        if outcome is None:
            assert process == self._leader
            assert None in possible
            possible = {text}
        elif isinstance(outcome, AlreadyExistError):
            assert possible != {None}
            possible = possible - {None}
        elif isinstance(outcome, PossibleInconsistentStateError | ProcessDied):
            possible = possible | {text}
        self._possible[name] = possible
        if not isinstance(outcome, FencedError):
            self._locked[name].add(process)
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names, fault=_faults)
    def replace(self, process: int, name: str, fault: Fault) -> None:
        """Replace an entry."""
        text = f"text {next(self._texts)}"
        store = self._stores[process]
        if self._backend.has_locks and process == self._leader:
            self._read(process, name)
        version = store.exists(name)
        outcome = self._try(process, fault, lambda store: store.replace(name, version, text))
        possible = self._possible[name]
        if outcome is None:
            assert process == self._leader
            assert possible != {None}
            possible = {text}
        elif isinstance(outcome, NotExistError):
            assert None in possible
            possible = {None}
        elif isinstance(outcome, PossibleInconsistentStateError | ProcessDied):
            possible = possible | {text}
        elif fault == "discard fails":
            # The pointer is swapped, and the old file could not be deleted.
            possible = possible | {text}
        self._possible[name] = possible
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names, fault=_faults)
    def remove(self, process: int, name: str, fault: Fault) -> None:
        """Remove an entry."""
        results: list[bool] = []
        outcome = self._try(process, fault, lambda store: results.append(store.release_and_try_remove(name)))
        if outcome is None:
            assert process == self._leader
            if results[0]:
                self._possible[name] = {None}
                self._locked[name] = set()
            else:
                assert self._backend.has_locks
                assert self._locked[name] - {process}
            self._locked[name].discard(process)
        elif not isinstance(outcome, FencedError):
            self._possible[name] = self._possible[name] | {None}
        # Who was refused may still hold its lock: a removal without leadership changes nothing.
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names)
    def read(self, process: int, name: str) -> None:
        """Read an entry."""
        self._read(process, name)

    @rule(process=_processes)
    def read_all(self, process: int) -> None:
        """Read all entries."""
        found = {name: handle.retrieve_state() for handle, name in self._stores[process].get_all_and_lock()}
        for name, possible in self._possible.items():
            text = found.get(name)
            assert text in possible, f"{name!r} is {text!r}, which is none of {possible!r}"
            self._possible[name] = {text}
            if text is not None:
                self._locked[name].add(process)

    @rule(process=_processes, name=_names)
    def release(self, process: int, name: str) -> None:
        """Give up a lock."""
        self._stores[process].release(name)
        self._locked[name].discard(process)

    @rule(process=_processes)
    def crash(self, process: int) -> None:
        """Let a process die and start again."""
        self._restart(process)

    @rule()
    def depose(self) -> None:
        """Elect the other process; the deposed one does not hear of it."""
        self._leader = 1 - self._leader
        self._backend.elect(self._identities[self._leader])

    @invariant()
    def every_pointer_that_is_seen_has_its_state(self) -> None:
        """Ask the leader, whose every answer must be one of the possible ones, without collapsing them by locks."""
        for name, possible in self._possible.items():
            if not self._stores[self._leader].exists(name).is_existing():
                assert None in possible, f"{name!r} was lost; it should be one of {possible!r}"

    def teardown(self) -> None:
        """Remove everything without faults: nothing may be left over, except by crashes and lost answers."""
        for process in (0, 1):
            self._stores[process].release_all()
        leader = self._stores[self._leader]
        for name in self._possible:
            assert leader.release_and_try_remove(name) is True
        assert self._backend.pointer_names() == []
        if not self._orphans_allowed:
            assert self._storage.files == []

    def _read(self, process: int, name: str) -> None:
        possible = self._possible[name]
        try:
            text: str | None = self._stores[process].get_and_lock(name).retrieve_state()
            self._locked[name].add(process)
        except NotExistError:
            text = None
        assert text in possible, f"{name!r} is {text!r}, which is none of {possible!r}"
        assert self._stores[process].exists(name).is_existing() == (text is not None)
        self._possible[name] = {text}

    def _try(self, process: int, fault: Fault, action: object) -> BaseException | None:
        """Do something while something goes wrong; only errors of our tree may come out."""
        store = self._stores[process]
        match fault:
            case (FaultMoment() as moment, int(after)):
                self._backend.strike(store, moment, after)
            case "discard fails":
                self._storage.before_discard = fail_storage
            case "dies before discard":
                self._storage.before_discard = die
            case "dies after discard":
                self._storage.after_discard = die
        try:
            assert callable(action)
            action(store)
        except (HoldfastError, ProcessDied) as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        finally:
            self._storage.spare()
            self._backend.spare(store)
        if process != self._leader:
            assert isinstance(outcome, HoldfastError | ProcessDied), "a process that does not lead wrote something"
        if isinstance(outcome, PossibleInconsistentStateError | ProcessDied) or fault == "discard fails":
            self._orphans_allowed = True
        return outcome

    def _end_of(self, process: int, outcome: BaseException | None) -> None:
        if isinstance(outcome, ProcessDied):
            self._restart(process)

    def _restart(self, process: int) -> None:
        self._backend.crash(self._stores[process])
        for holders in self._locked.values():
            holders.discard(process)
        self._stores[process] = self._backend.open(self._storage, self._identities[process])
