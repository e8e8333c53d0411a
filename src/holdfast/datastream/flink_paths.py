"""Module paths of `pyflink.datastream` whose classes stand elsewhere here; see `holdfast.common.flink_paths`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final


def _from(module: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_STREAM: Final = "holdfast.datastream.stream"
_USER: Final = "holdfast.runtime.function.user_function"

DATASTREAM: Final[Mapping[str, Mapping[str, str]]] = {
    "checkpoint_storage": _from(
        "holdfast.checkpoint.storage.checkpoint_storage",
        ("CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"),
    ),
    "checkpointing_mode": _from("holdfast.datastream.checkpoint_config", ("CheckpointingMode",)),
    "data_stream": {
        **_from(f"{_STREAM}.data_stream", ("DataStream", "DataStreamSink")),
        **_from(f"{_STREAM}.keyed_stream", ("KeyedStream",)),
        **_from(f"{_STREAM}.connected", ("ConnectedStreams",)),
        **_from(f"{_STREAM}.broadcast", ("BroadcastStream", "BroadcastConnectedStream")),
        "CloseableIterator": "holdfast.datastream.environment.result:CollectedElements",
    },
    "execution_mode": _from("holdfast.runtime.job.options", ("RuntimeExecutionMode",)),
    "externalized_checkpoint_retention": {
        "ExternalizedCheckpointRetention": "holdfast.datastream.checkpoint_config:ExternalizedCheckpointCleanup"
    },
    "output_tag": _from(_USER, ("OutputTag",)),
    "stream_execution_environment": _from(
        "holdfast.datastream.environment.stream_execution_environment", ("StreamExecutionEnvironment",)
    ),
    "time_domain": _from(_USER, ("TimeDomain",)),
    "timerservice": _from(_USER, ("TimerService",)),
}
"""Modules of `holdfast.datastream`, and where their names stand."""
