"""The file register against a model, with leaders that crash, sleep at any step, and lose answers."""

import tempfile
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import ConflictError, FencedError, PossibleInconsistentStateError
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import CheckpointPointer, FileRegister
from tests.contract.register_contract import Crash, Gate, ids
from tests.examples import examples
from tests.stories.gated_file_system import GatedFileSystem


class RegisterModel(RuleBasedStateMachine):
    """The model: the list of checkpoints that are known to be recorded, and who leads."""

    @initialize()
    def begin(self):
        self.directory = tempfile.TemporaryDirectory()
        self.writers = []
        self.recorded = []
        self.next_id = 1
        self.top = 0
        self.versions = 0

    def teardown(self):
        if hasattr(self, "directory"):
            self.directory.cleanup()

    def register(self, gate=None):
        fs = LocalFileSystem() if gate is None else GatedFileSystem(LocalFileSystem(), gate)
        return FileRegister(fs, self.directory.name)

    def writes(self, writer):
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1

        def change(state):
            pointer = CheckpointPointer(checkpoint_id, f"chk-{checkpoint_id}/_metadata", 1, "", writer.token)
            return replace(state, checkpoints=(*state.checkpoints, pointer), next_checkpoint_id=checkpoint_id + 1)

        return checkpoint_id, change

    @rule()
    def take_over(self):
        writer = self.register().raise_token("leader")
        assert writer.token > self.top
        assert ids(writer.state) == self.recorded
        self.top = writer.token
        self.writers.append(writer)

    @precondition(lambda self: self.writers)
    @rule(number=st.integers(1, 70))
    def lead(self, number):
        writer = self.writers[-1]
        for _ in range(number):
            checkpoint_id, change = self.writes(writer)
            writer.write(change)
            self.recorded.append(checkpoint_id)

    @precondition(lambda self: len(self.writers) > 1)
    @rule(data=st.data())
    def a_deposed_leader_wakes(self, data):
        writer = data.draw(st.sampled_from(self.writers[:-1]))
        _, change = self.writes(writer)
        with pytest.raises(FencedError):
            writer.write(change)

    @precondition(lambda self: self.writers)
    @rule(at=st.integers(0, 12), error=st.sampled_from([Crash(), PossibleInconsistentStateError("lost")]))
    def a_write_breaks_at_a_step(self, at, error):
        gate = Gate(at)
        writer = self.register(gate).raise_token("unlucky")
        self.top = writer.token
        checkpoint_id, change = self.writes(writer)

        def strike():
            raise error

        gate.arm(strike)
        try:
            writer.write(change)
            self.recorded.append(checkpoint_id)
        except (Crash, PossibleInconsistentStateError):
            if checkpoint_id in ids(self.register().read()):
                self.recorded.append(checkpoint_id)
        gate.arm(lambda: None)
        self.take_over()

    @precondition(lambda self: self.writers)
    @rule(at=st.integers(0, 12), number=st.integers(0, 70))
    def a_leader_sleeps_in_a_write(self, at, number):
        gate = Gate(at)
        writer = self.register(gate).raise_token("sleeper")
        self.top = writer.token
        self.writers.append(writer)
        checkpoint_id, change = self.writes(writer)

        def others_go_on():
            if checkpoint_id in ids(self.register().read()):
                self.recorded.append(checkpoint_id)
            self.take_over()
            self.lead(number)

        gate.arm(others_go_on)
        try:
            writer.write(change)
            if not gate.has_acted:
                self.recorded.append(checkpoint_id)
            assert checkpoint_id in self.recorded
        except (FencedError, ConflictError):
            assert checkpoint_id not in self.recorded
        gate.arm(lambda: None)

    @invariant()
    def what_was_recorded_is_there_and_nothing_else(self):
        if not hasattr(self, "directory"):
            return
        state = self.register().read()
        assert ids(state) == self.recorded
        assert state.token == self.top
        assert state.version >= self.versions
        self.versions = state.version


RegisterModel.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=12, deadline=None)
TestRegisterModel = RegisterModel.TestCase
