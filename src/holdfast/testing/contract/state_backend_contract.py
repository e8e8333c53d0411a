"""What every state backend must do, as a pytest class.

A test module derives from `StateBackendContract` and gives the fixture ``state_backend``::

    class TestMyStateBackend(StateBackendContract):
        @pytest.fixture
        def state_backend(self):
            return MyStateBackend()

and may override `between_epochs`, which runs after each epoch, to lose what the process has kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.state.backend import StateBackend
from holdfast.testing.state_contract.state_access_contract import StateAccessContract
from holdfast.testing.state_contract.state_backend_machine import StateBackendMachine
from holdfast.testing.state_contract.state_collection_contract import StateCollectionContract
from holdfast.testing.state_contract.state_epochs import StateEpochs
from holdfast.testing.state_contract.state_evolution_contract import StateEvolutionContract
from holdfast.testing.state_contract.state_expiry_contract import StateExpiryContract
from holdfast.testing.state_contract.state_redeclaration_contract import StateRedeclarationContract
from holdfast.testing.state_contract.state_registration_contract import StateRegistrationContract
from holdfast.testing.state_contract.state_timer_contract import StateTimerContract
from holdfast.testing.state_contract.state_version_contract import StateVersionContract


@pytest.mark.timeout(300)
class StateBackendContract(
    StateAccessContract,
    StateCollectionContract,
    StateRegistrationContract,
    StateVersionContract,
    StateTimerContract,
    StateExpiryContract,
    StateEvolutionContract,
    StateRedeclarationContract,
):
    """The behaviour of a state backend."""

    # How many histories the state machine tries, and how long each is.
    machine_examples = 150
    machine_steps = 20

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        """The backend under test."""
        pytest.skip("derive from StateBackendContract and override the fixture state_backend")

    def between_epochs(self) -> None:
        """Run after each epoch."""
        return

    @pytest.fixture
    def epochs(self, state_backend: StateBackend, tmp_path: Path) -> StateEpochs:
        """An operator with string keys and one subtask."""
        return StateEpochs(state_backend, str(tmp_path), after=self.between_epochs)

    def test_every_history_ends_as_in_plain_dicts(self, state_backend: StateBackend, tmp_path: Path) -> None:
        """Any mix of all kinds of state, failures, abandoned epochs, returns to older versions and rescaling."""

        def machine() -> StateBackendMachine:
            return StateBackendMachine(state_backend, tmp_path, self.between_epochs)

        run_state_machine_as_test(
            cast("type[StateBackendMachine]", machine),
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=self.machine_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
