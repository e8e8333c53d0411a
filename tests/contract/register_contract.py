"""The contract of fenced registers: one suite for all stores.

A writer is stopped between any two of its steps, while another raises the token and goes on; requests and answers get
lost; writers crash. No thread and no clock is needed for that: at the chosen step the writer's own call runs the
other writer to its end and then goes on.

    class TestFileRegister(RegisterContract):
        @pytest.fixture
        def new_site(self, tmp_path):
            return lambda: FileRegisterSite(tmp_path / new_nonce())
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest

from holdfast.errors import FencedError, PossibleInconsistentStateError
from holdfast.storage.register import CheckpointPointer, FencedRegister, RegisterState, RegisterWriter
from holdfast.storage.versioned_document import RemovableDocument, V


class Crash(BaseException):
    """The writer's process dies here; nothing of it runs on."""


class Gate:
    """Counts the steps of a writer and does something at one of them.

    A step is one request to the store; the gate is passed before and after each.

    Args:
        at: At which pass it acts, counting from 0 once it is armed.
    """

    def __init__(self, at: int) -> None:
        self.passed: list[str] = []
        self.has_acted = False
        self._at = at
        self._action: Callable[[], None] | None = None

    def arm(self, action: Callable[[], None]) -> None:
        """Count from now on, and do something when the number is reached."""
        self.passed = []
        self._action = action

    def __call__(self, name: str) -> None:
        """Pass the gate; `name` says where, for messages."""
        self.passed.append(name)
        if self._action is not None and not self.has_acted and len(self.passed) - 1 == self._at:
            self.has_acted = True
            self._action()

    def __repr__(self) -> str:
        return f"the writer stopped {self.passed[self._at]!r}" if self.has_acted else "the writer did not stop"


class GatedDocument(RemovableDocument[V]):
    """A document whose reads, writes and removals pass a gate; for stores that offer no finer steps."""

    def __init__(self, document: RemovableDocument[V], gate: Gate) -> None:
        super().__init__(document.format)
        self._document = document
        self._gate = gate

    def read(self) -> V:
        self._gate("before read")
        version = self._document.read()
        self._gate("after read")
        return version

    def _write_next(self, base: V, new: V) -> None:
        self._gate("before write")
        self._document._write_next(base, new)
        self._gate("after write")

    def remove(self, base: V) -> None:
        self._gate("before removal")
        self._document.remove(base)
        self._gate("after removal")


class RegisterSite(ABC):
    """One register in one store, opened by several leaders as if each were a process of its own."""

    @abstractmethod
    def open(self, gate: Gate | None = None) -> FencedRegister:
        """Open the register; with a gate, every request to the store passes it before and after."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of the store."""


def completing(
    checkpoint_id: int, *, token: int = 0, retained: int = 10_000
) -> Callable[[RegisterState], RegisterState]:
    """Return the change that adds a checkpoint and reserves its id."""

    def change(state: RegisterState) -> RegisterState:
        pointer = CheckpointPointer(checkpoint_id, f"chk-{checkpoint_id}/_metadata", 1, "0" * 64, token)
        checkpoints = (*state.checkpoints, pointer)[-retained:]
        return replace(
            state,
            checkpoints=checkpoints,
            next_checkpoint_id=max(state.next_checkpoint_id, checkpoint_id + 1),
        )

    return change


def ids(state: RegisterState) -> list[int]:
    """Return the ids of the retained checkpoints."""
    return [pointer.checkpoint_id for pointer in state.checkpoints]


class Rival:
    """Another leader, who takes over and completes a number of checkpoints."""

    FIRST_ID: Final = 1000

    def __init__(self, site: RegisterSite, versions: int) -> None:
        self._site = site
        self._versions = versions
        self.found: list[int] = []
        self.writer: RegisterWriter | None = None

    def __call__(self) -> None:
        """Raise the token (one version) and write the others."""
        self.writer = self._site.open().raise_token("rival")
        self.found = ids(self.writer.state)
        for number in range(self._versions - 1):
            self.writer.write(completing(self.FIRST_ID + number, token=self.writer.token))

    def goes_on(self, checkpoint_id: int) -> None:
        """Complete one more."""
        assert self.writer is not None
        self.writer.write(completing(checkpoint_id, token=self.writer.token))

    @property
    def completed(self) -> list[int]:
        """All checkpoints that it knows of: those it found and its own."""
        return self.found + [self.FIRST_ID + number for number in range(self._versions - 1)]


class RegisterContract:
    """The suite; a subclass provides the fixture `new_site`, a function that makes a new, empty site at each call."""

    ahead: tuple[int, ...] = (1, 2, 63, 64, 65, 100)
    """How many versions a rival goes on by while the writer is stopped."""

    @pytest.fixture
    def site(self, new_site: Callable[[], RegisterSite]) -> Iterator[RegisterSite]:
        site = new_site()
        yield site
        site.close()

    def test_a_new_register_is_empty_and_the_first_leader_gets_the_first_token(self, site: RegisterSite) -> None:
        assert site.open().read() == RegisterState()
        writer = site.open().raise_token("driver 1")
        assert (writer.token, writer.owner, writer.state.version) == (1, "driver 1", 1)
        assert site.open().read() == writer.state

    def test_other_processes_read_the_complete_state(self, site: RegisterSite) -> None:
        writer = site.open().raise_token("driver 1")
        written = writer.write(completing(7, token=writer.token))
        writer.write(lambda state: replace(state, terminal="FINISHED", newest_committed=7))
        found = site.open().read()
        assert found.checkpoints == written.checkpoints
        assert (found.version, found.token, found.next_checkpoint_id) == (3, 1, 8)
        assert (found.terminal, found.newest_committed, found.owner) == ("FINISHED", 7, "driver 1")

    def test_versions_and_tokens_only_increase(self, site: RegisterSite) -> None:
        seen = [site.open().read()]
        for leader in range(3):
            writer = site.open().raise_token(f"driver {leader}")
            seen.append(writer.state)
            for number in range(30):
                seen.append(writer.write(completing(leader * 100 + number + 1, retained=3)))
                assert site.open().read() == seen[-1]
        assert [state.version for state in seen] == list(range(len(seen)))
        assert [state.token for state in seen] == sorted(state.token for state in seen)
        assert ids(seen[-1]) == [228, 229, 230]

    def test_an_empty_change_writes_nothing(self, site: RegisterSite) -> None:
        writer = site.open().raise_token("driver 1")
        assert writer.write(lambda state: state).version == 1
        assert site.open().read().version == 1

    def test_a_deposed_leader_is_fenced_and_stays_so(self, site: RegisterSite) -> None:
        first = site.open().raise_token("driver 1")
        first.write(completing(1))
        second = site.open().raise_token("driver 2")
        assert ids(second.state) == [1]
        for _ in range(2):
            with pytest.raises(FencedError, match="driver"):
                first.write(completing(2))
            with pytest.raises(FencedError):
                first.check()
        assert first.has_ended
        assert not second.has_ended
        assert ids(second.check()) == [1]
        assert ids(second.write(completing(3))) == [1, 3]

    def test_a_register_never_goes_back(self, site: RegisterSite) -> None:
        writer = site.open().raise_token("driver 1")
        writer.write(completing(5))
        with pytest.raises(ValueError, match="goes back"):
            writer.write(lambda state: replace(state, next_checkpoint_id=5, checkpoints=()))
        with pytest.raises(ValueError, match="never reserved"):
            writer.write(lambda state: replace(state, checkpoints=(CheckpointPointer(9, "x", 1, "", 1),)))
        assert ids(site.open().read()) == [5]
        assert ids(writer.write(completing(6))) == [5, 6]

    def test_a_writer_that_sleeps_at_any_step_of_a_write_is_recorded_or_fenced(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        """Whatever the rival found is kept for ever; whatever it did not find never appears."""
        for versions in self.ahead:
            for site, gate in every_step(new_site):
                writer = site.open(gate).raise_token("sleeper")
                writer.write(completing(1))
                rival = Rival(site, versions)
                gate.arm(rival)
                try:
                    writer.write(completing(2))
                    outcome = "recorded"
                except FencedError:
                    outcome = "fenced"
                if not gate.has_acted:
                    break
                story = f"{gate}, the rival wrote {versions} versions, the writer was {outcome}"
                assert rival.found == ([1, 2] if outcome == "recorded" else [1]), story
                assert ids(site.open().read()) == rival.completed, story
                with pytest.raises(FencedError):
                    writer.write(completing(3))
                assert writer.has_ended
                rival.goes_on(5000)
                assert ids(site.open().read()) == [*rival.completed, 5000], story

    def test_a_process_that_sleeps_at_any_step_of_raising_the_token_leads_or_is_fenced(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        for versions in self.ahead:
            for site, gate in every_step(new_site):
                site.open().raise_token("first").write(completing(1))
                rival = Rival(site, versions)
                gate.arm(rival)
                writer = site.open(gate).raise_token("sleeper")
                if not gate.has_acted:
                    break
                story = f"{gate}, the rival wrote {versions} versions"
                assert rival.writer is not None
                leader, deposed = (
                    (writer, rival.writer) if writer.token > rival.writer.token else (rival.writer, writer)
                )
                assert leader.token > deposed.token, story
                with pytest.raises(FencedError):
                    deposed.write(completing(6000))
                leader.write(completing(5000))
                assert ids(site.open().read()) == [*rival.completed, 5000], story

    def test_a_reader_that_sleeps_at_any_step_sees_one_version_whole(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        for versions in self.ahead:
            for site, gate in every_step(new_site):
                site.open().raise_token("first").write(completing(1))
                reader = site.open(gate)
                rival = Rival(site, versions)
                gate.arm(rival)
                found = reader.read()
                if not gate.has_acted:
                    break
                assert ids(found) in ([1], rival.completed), f"{gate}, {versions} versions"
                assert reader.read() == site.open().read()

    def test_a_writer_that_crashes_at_any_step_leaves_the_old_or_the_new_version(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        for site, gate in every_step(new_site):
            writer = site.open(gate).raise_token("victim")
            writer.write(completing(1))
            gate.arm(raiser(Crash()))
            with suppress(Crash):
                writer.write(completing(2))
            if not gate.has_acted:
                break
            successor = site.open().raise_token("successor")
            found = ids(successor.state)
            assert found in ([1], [1, 2]), gate
            assert successor.state.next_checkpoint_id > max(found), gate
            successor.write(completing(3))
            assert ids(site.open().read()) == [*found, 3], gate

    def test_a_crash_at_any_step_of_raising_the_token_blocks_no_other_process(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        for site, gate in every_step(new_site):
            site.open().raise_token("first").write(completing(1))
            gate.arm(raiser(Crash()))
            with suppress(Crash):
                site.open(gate).raise_token("victim")
            if not gate.has_acted:
                break
            writer = site.open().raise_token("successor")
            assert ids(writer.write(completing(2))) == [1, 2], gate

    def test_the_outcome_of_a_lost_request_or_answer_is_reported_correctly(
        self, new_site: Callable[[], RegisterSite]
    ) -> None:
        """The writer says recorded, or that nobody knows; and then whoever raises the token next finds one truth."""
        for site, gate in every_step(new_site):
            writer = site.open(gate).raise_token("unlucky")
            writer.write(completing(1))
            gate.arm(raiser(PossibleInconsistentStateError("The connection broke.")))
            possible = [[1, 2]]
            try:
                writer.write(completing(2))
            except PossibleInconsistentStateError:
                possible = [[1], [1, 2]]
                with pytest.raises(PossibleInconsistentStateError):
                    writer.write(completing(3))
                assert writer.has_ended
            if not gate.has_acted:
                break
            found = ids(site.open().read())
            assert found in possible, gate
            assert ids(site.open().raise_token("successor").write(completing(4))) == [*found, 4], gate

    def test_concurrent_leaders_never_lose_or_mix_records(self, site: RegisterSite) -> None:
        recorded: list[int] = []
        mutex = threading.Lock()

        def lead(number: int) -> None:
            register = site.open()
            for term in range(4):
                writer = register.raise_token(f"leader {number}")
                for write in range(5):
                    checkpoint_id = number * 10_000 + term * 100 + write + 1
                    try:
                        writer.write(completing(checkpoint_id, token=writer.token))
                    except FencedError:
                        break
                    with mutex:
                        recorded.append(checkpoint_id)

        threads = [threading.Thread(target=lead, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        final = site.open().read()
        assert sorted(ids(final)) == sorted(recorded)
        tokens = [pointer.token for pointer in final.checkpoints]
        assert tokens == sorted(tokens)
        assert final.token == 16


def every_step(new_site: Callable[[], RegisterSite]) -> Iterator[tuple[RegisterSite, Gate]]:
    """Give a new site and a gate again and again, each time armed one step later; the caller ends the loop."""
    for step in itertools.count():
        site = new_site()
        yield site, Gate(step)
        site.close()


def raiser(error: BaseException) -> Callable[[], None]:
    def strike() -> None:
        raise error

    return strike
