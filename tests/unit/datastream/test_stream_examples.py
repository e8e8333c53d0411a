"""The examples in docstrings of streams, windows, state and types run without Spark, and print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest

from holdfast import common, datastream
from holdfast.datastream import functions, state, window
from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import OPTIONS, LocalEngine, run_job

STREAMS = ("data_stream", "keyed_stream", "connected", "interval_join", "windowed")
ENVIRONMENT = ("stream_execution_environment", "execution_config")
MODULES = [
    *(f"datastream.stream.{name}" for name in STREAMS),
    *(f"datastream.environment.{name}" for name in ENVIRONMENT),
    *(f"datastream.{name}" for name in ("async_data_stream", "slot_sharing_group", "state_backend")),
    *(f"runtime.window.{name}" for name in ("evictor", "trigger", "window", "window_assigner")),
    *("runtime.operator.batch_function", "runtime.window_operator.batch_aggregate"),
    *("common.time", "kernel.configuration", "kernel.watermark", "state.api", "state.descriptor"),
    *(f"types.{name}" for name in ("row", "serialization", "types")),
]


class ExampleEnvironment(StreamExecutionEnvironment):
    """Runs jobs over collections without Spark: one epoch has all elements."""

    def __init__(self, directory: Path) -> None:
        super().__init__(Configuration(), None)
        self._directory = directory

    def execute_async(self, job_name: str | None = None) -> JobClient:
        graph = self.get_stream_graph()
        self._sinks = []
        inputs = {node.uid: list(node.collection or ()) for node in graph.of(SourceNode)}
        options = {**OPTIONS, **self.get_configuration().to_texts()}
        engine = LocalEngine([inputs], is_bounded=True, source_tasks=1, amnesia=False, interceptor=None)
        return JobClient(run_job(graph, self._directory, engine, options, name=job_name or "example", parallelism=1))


@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_show(module: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for package in (state, functions, window, common, datastream):
        names |= {name: getattr(package, name) for name in package.__all__}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    imported = importlib.import_module(f"holdfast.{module}")
    found = doctest.DocTestFinder().find(imported, module)
    for number, example in enumerate(one for one in found if one.examples):
        example.globs = {**vars(imported), **names, "env": ExampleEnvironment(tmp_path / str(number))}
        runner.run(example)
    assert not runner.failures


BASES = {
    *("AppendingState", "KeyedStateStore", "MergingState", "OperatorStateStore", "ReadOnlyBroadcastState", "State"),
    *("BaseBroadcastProcessFunction", "Function", "FunctionInitializationContext", "FunctionSnapshotContext"),
    *("MasterTriggerRestoreHook", "RichCoFlatMapFunction", "RichCoMapFunction", "RichFilterFunction"),
    *("RichFlatMapFunction", "RichFunction", "RichMapFunction", "RichReduceFunction", "StateDescriptor", "TimeDomain"),
    *("TriggerResult", "Window", "WithMasterCheckpointHook"),
    *("CountWindowSerializer", "GlobalWindowSerializer", "TimeWindowSerializer"),
}
"""Base classes, and classes that refer to the example of another one."""


@pytest.mark.parametrize("package", [state, functions, window], ids=lambda package: package.__name__)
def test_each_public_function_state_and_window_has_an_example(package: Any) -> None:
    names = set(package.__all__) - BASES
    assert [name for name in sorted(names) if ">>>" not in (getattr(package, name).__doc__ or "")] == []
