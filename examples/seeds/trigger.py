"""Triggering a checkpoint by hand.

python examples/seeds/trigger.py CHECKPOINTS
"""

from __future__ import annotations

import sys
from concurrent.futures import Future

from examples.seeds.coordinator import create_coordinator
from holdfast.checkpoint import CheckpointProperties, CheckpointRetentionPolicy, CompletedCheckpoint


def report(future: Future[CompletedCheckpoint]) -> None:
    """Say what became of the checkpoint."""
    throwable = future.exception()
    if throwable is not None:
        print("Checkpoint failed:", throwable, file=sys.stderr)
    else:
        print("Checkpoint completed:", future.result().get_checkpoint_id())


def main(checkpoints: str) -> CompletedCheckpoint:
    """Trigger one checkpoint and wait for it."""
    coordinator, _ = create_coordinator(checkpoints)

    # Trigger a checkpoint manually
    properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
    checkpoint_future = coordinator.trigger_checkpoint(
        properties,
        None,  # no external savepoint location
        False,  # not periodic
    )
    checkpoint_future.add_done_callback(report)
    completed = checkpoint_future.result(timeout=60)
    coordinator.shutdown()
    return completed


if __name__ == "__main__":
    main(sys.argv[1])
