"""The seeds' example of a function with keyed and operator state: it counts what it maps, and keeps it.

python examples/seeds/stateful_map.py
"""

from __future__ import annotations

from holdfast.datastream import (
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RichMapFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ListState, ListStateDescriptor, ValueState, ValueStateDescriptor


class StatefulMapFunction(RichMapFunction, CheckpointedFunction):
    """Says how often a key was seen, and keeps all values of its subtask."""

    count_state: ValueState[int]
    buffer_state: ListState[str]

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        # Keyed state.
        count_descriptor = ValueStateDescriptor("count", int)
        self.count_state = context.get_keyed_state_store().get_state(count_descriptor)

        # Operator state.
        buffer_descriptor = ListStateDescriptor("buffer", str)
        self.buffer_state = context.get_operator_state_store().get_list_state(buffer_descriptor)

        # The function is set up anew in every epoch, from what the epoch before has left.
        if context.is_restored():
            print("Restoring state from checkpoint", context.get_restored_checkpoint_id())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        # Managed state is saved by itself.
        print("Taking snapshot for checkpoint:", context.get_checkpoint_id())

    def map(self, value: str) -> str:
        # Keyed state.
        current_count = self.count_state.value()
        if current_count is None:
            current_count = 0
        self.count_state.update(current_count + 1)

        # Operator state.
        self.buffer_state.add(value)

        return f"{value} (processed {current_count + 1} times)"


def define(words: DataStream) -> DataStream:
    """The program, for any stream of words."""
    return words.key_by(lambda word: word, "string").map(StatefulMapFunction(), "string").uid("stateful-map")


def main() -> None:
    """Maps a few words."""
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["kelp", "rock", "kelp", "holdfast", "kelp"], "string")
    with define(words).execute_and_collect() as results:
        for text in results:
            print(text)


if __name__ == "__main__":
    main()
