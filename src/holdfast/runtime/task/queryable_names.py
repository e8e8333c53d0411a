"""The names under which the states of a job can be queried: each belongs to one state of one operator.

Which states there are is known only once the functions are open, so tasks collect the names and report them, and the
job master compares before the first epoch is accepted: a clash fails the job, and nothing was committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.state.backend import TaskKvStateRegistry


class QueryableNames(TaskKvStateRegistry):
    """Collects the names of one subtask.

    Args:
        uid: Its operator.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._states: dict[str, str] = {}

    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """Take a name.

        Raises:
            ConfigurationError: Another state of the operator has it.
        """
        known = self._states.setdefault(registration_name, state_name)
        if known != state_name:
            raise ConfigurationError(
                f"Registration name clash. States {known!r} and {state_name!r} of operator {self._uid!r} are both "
                f"queryable as {registration_name!r}. Give one of them another name."
            )

    def unregister_all(self) -> None:
        """Forget all names."""
        self._states.clear()

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._states))


def check_names(steps: Iterable[StepReport]) -> None:
    """Check that no two operators have made state queryable under one name.

    Raises:
        ConfigurationError: Two have.
    """
    owners: dict[str, str] = {}
    for step in steps:
        for name in step.queryable:
            owner = owners.setdefault(name, step.uid)
            if owner != step.uid:
                raise ConfigurationError(
                    f"Registration name clash. KvState with name {name!r} has been registered by operator {owner!r} "
                    f"and by operator {step.uid!r}. Give one of them another name."
                )
