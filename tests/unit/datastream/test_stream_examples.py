"""The examples in docstrings of streams and of the environment run on the epoch runner, and print what they show."""

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

ROOT = "holdfast.datastream."
MODULES = [
    *(f"stream.{name}" for name in ("data_stream", "keyed_stream", "connected", "interval_join", "windowed")),
    *(f"environment.{name}" for name in ("stream_execution_environment", "execution_config")),
    *("async_data_stream", "slot_sharing_group", "state_backend"),
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
    found = doctest.DocTestFinder().find(importlib.import_module(ROOT + module), module)
    for number, example in enumerate(one for one in found if one.examples):
        example.globs = {**names, "env": ExampleEnvironment(tmp_path / str(number))}
        runner.run(example)
    assert not runner.failures
