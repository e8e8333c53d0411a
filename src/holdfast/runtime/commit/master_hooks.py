"""Hooks that steps of a program bring into the job master's side of checkpoints.

A function or a sink that is a `WithMasterCheckpointHook` makes one in each job attempt, in the driver. Hooks are
triggered between two epochs, when all tasks have answered: what they return is the state of that boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.checkpoint.coordination.coordinator import CheckpointCoordinator
from holdfast.checkpoint.coordination.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.errors import ConfigurationError, CorruptFileError, RestoreError, StateError
from holdfast.runtime.commit.starting_point import Restored
from holdfast.runtime.function.user_function import functions_of
from holdfast.runtime.graph.stream_graph import KeyedNode, NarrowNode, Node, SinkNode, StreamGraph


def add_hooks(graph: StreamGraph, coordinator: CheckpointCoordinator) -> None:
    """Make the hooks of a program and let them take part in checkpoints.

    Raises:
        ConfigurationError: A step makes something else, or two hooks have one name.
        StateError: A step could not make its hook, or not name it.
    """
    owners: dict[str, str] = {}
    for node in graph.nodes:
        for hook in _hooks_of(node):
            try:
                identifier = hook.get_identifier()
            except Exception as error:
                raise StateError(
                    f"the step {node.identity!r} could not name its master hook: {type(error).__name__}: {error}"
                ) from error
            try:
                is_new = coordinator.add_master_hook(hook)
            except ValueError as error:
                raise ConfigurationError(f"the step {node.identity!r}: {error}") from error
            if not is_new:
                raise ConfigurationError(
                    f"the steps {owners[identifier]!r} and {node.identity!r} both have a master hook {identifier!r}; "
                    "give each a name of its own, by which its state is found"
                )
            owners[identifier] = node.identity


def restore_hooks(coordinator: CheckpointCoordinator, restored: Restored) -> None:
    """Give hooks their state in the checkpoint that an attempt starts from; without one they begin anew.

    Raises:
        RestoreError: The checkpoint has state of hooks that the program has not, and that is not allowed.
        CorruptFileError: What the checkpoint holds of a hook cannot be read.
        StateError: A hook has failed.
    """
    hooks = coordinator.master_hooks
    states: Mapping[str, Any] = restored.master_states
    unmatched = sorted(set(states) - set(hooks.identifiers))
    if unmatched and not restored.allow_non_restored:
        raise RestoreError(
            (),
            (),
            f"the checkpoint holds state of the master hooks {unmatched}, which this program does not have. Add the "
            "functions or sinks that bring them, or drop that state with -n "
            "(execution.state-recovery.ignore-unclaimed-state)",
        )
    checkpoint_id = restored.checkpoint_id
    path = "" if restored.source is None else restored.source.external_path
    try:
        if checkpoint_id is None:
            hooks.reset()
        else:
            hooks.restore(checkpoint_id, states, allow_unmatched=True, path=path)
    except CorruptFileError:
        raise
    except Exception as error:
        what = "could not begin anew" if checkpoint_id is None else f"could not restore checkpoint {checkpoint_id}"
        raise StateError(f"a master hook {what}: {type(error).__name__}: {error}") from error


def _hooks_of(node: Node) -> Iterator[MasterTriggerRestoreHook[Any]]:
    if isinstance(node, KeyedNode | NarrowNode):
        brought = list(functions_of(node.operator.function))
    else:
        brought = [node.sink] if isinstance(node, SinkNode) else []
    for one in brought:
        if isinstance(one, WithMasterCheckpointHook):
            yield _hook_of(node, one)


def _hook_of(node: Node, brought: WithMasterCheckpointHook[Any]) -> MasterTriggerRestoreHook[Any]:
    try:
        hook = brought.create_master_trigger_restore_hook()
    except Exception as error:
        raise StateError(
            f"the step {node.identity!r} could not make its master hook: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(hook, MasterTriggerRestoreHook):
        raise ConfigurationError(
            f"the step {node.identity!r}: create_master_trigger_restore_hook() returned {hook!r}, which is no "
            "MasterTriggerRestoreHook"
        )
    return hook
