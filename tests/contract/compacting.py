"""Compaction of the state of `StateEpochs`, as in a job, but at any time and of any layers."""

import random

from holdfast.kernel.key_group import range_of
from holdfast.state.compaction import compact
from holdfast.state.compaction_plan import (
    CompactionOutput,
    CompactionPlan,
    apply_compaction,
    components,
    depth,
    layers,
    output_ranges,
)
from holdfast.storage.job_directory import FileName
from holdfast.testing.state_contract.state_access_contract import StateEpochs


def compact_layers(epochs: StateEpochs, start: int, end: int, now: int = 0) -> None:
    """Merges the layers from `start` up to `end` of each component of a version."""
    for component in components(epochs.version.runs):
        found = layers(component)
        assert depth(component) <= len(found)
        chosen = found[start:end]
        inputs = [run for layer in chosen for run in layer.runs]
        if len(inputs) < 2:
            continue
        subtasks = [range_of(i, epochs.max_parallelism, epochs.parallelism) for i in range(epochs.parallelism)]
        ranges = output_ranges(chosen, start == 0, subtasks)
        outputs = tuple(
            CompactionOutput("shared/" + FileName.new(1, 1, 0, "operator", at).format(), part)
            for at, part in enumerate(ranges)
        )
        plan = CompactionPlan(epochs.directory, tuple(inputs), outputs, start == 0, now, 1)
        plan = CompactionPlan.from_json(plan.to_json())
        swapped = apply_compaction(epochs.version, inputs, compact(plan, epochs.files))
        assert swapped is not None
        epochs.version = swapped


def compact_some(epochs: StateEpochs, rng: random.Random) -> None:
    start = rng.randrange(4)
    compact_layers(epochs, start, start + rng.randrange(2, 6))
