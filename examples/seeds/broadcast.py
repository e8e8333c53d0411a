"""The seeds' example of broadcast state: configuration that every subtask of an operator has.

python examples/seeds/broadcast.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RichMapFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import BroadcastState, MapStateDescriptor

Settings = dict[str, Any]
"""What the seeds call `Configuration`; any object may be a value."""

# Broadcast state for configuration.
CONFIG_DESCRIPTOR: MapStateDescriptor[str, Settings] = MapStateDescriptor("config", "string")


class Configured(RichMapFunction, CheckpointedFunction):
    """Uses broadcast state from the operator state store, as the seeds do."""

    broadcast_state: BroadcastState[str, Settings]

    def __init__(self, new_configuration: Settings) -> None:
        self.new_configuration = new_configuration

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.broadcast_state = context.get_operator_state_store().get_broadcast_state(CONFIG_DESCRIPTOR)

        # Update broadcast state.
        self.broadcast_state.put("global-config", self.new_configuration)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Managed state is saved by itself."""

    def map(self, value: str) -> str:
        # Read from broadcast state in the processing function.
        config = self.broadcast_state.get("global-config")
        assert config is not None
        return f"{config['greeting']} {value}"


class ConfiguredByStream(BroadcastProcessFunction):
    """The same where the configuration comes as a stream, which may change at any time."""

    def process_broadcast_element(self, value: Settings, ctx: BroadcastProcessFunction.Context) -> Iterator[str]:
        ctx.get_broadcast_state(CONFIG_DESCRIPTOR).put("global-config", value)
        yield from ()

    def process_element(self, value: str, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[str]:
        config = ctx.get_broadcast_state(CONFIG_DESCRIPTOR).get("global-config")
        yield f"{config['greeting']} {value}" if config else f"{value}?"


def define(words: DataStream, configurations: DataStream) -> DataStream:
    """The program, for any words and configurations."""
    stream = words.connect(configurations.broadcast(CONFIG_DESCRIPTOR))
    return stream.process(ConfiguredByStream(), "string").uid("by-stream")


def main() -> None:
    """Greets by a configuration that is given, and by one that is broadcast."""
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["kelp", "rock"], "string")
    with words.map(Configured({"greeting": "Hello"}), "string").uid("configured").execute_and_collect() as results:
        for text in results:
            print(text)

    configurations = env.from_collection([{"greeting": "Ahoy"}])
    with define(words, configurations).execute_and_collect() as results:
        for text in results:
            print(text)


if __name__ == "__main__":
    main()
