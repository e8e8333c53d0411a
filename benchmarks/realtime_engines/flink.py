"""Flink 2.3: SQL in its JVM, or PyFlink's DataStream in thread mode, in PyFlink's own environment.

Both checkpoint each second, with state on the heap. The buffer timeout is 5 ms, the lower of the two values that
Flink's documentation names for low latency; its default is 100 ms. Thread mode has no bundles, so PyFlink needs no
bundle time.

From files to a local sink, SQL writes by Flink's connector `print`, whose lines another process reads.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.realtime_run import PARALLELISM, LatencyFile, RealTimeRun, RunningJob, serve

_FIELDS: Final = "`key` bigint, created bigint"
_RUNNING: Final = ("CREATED", "INITIALIZING", "RUNNING", "RESTARTING", "RECONCILING")


def environment(run: RealTimeRun) -> Any:
    """Return an environment for streams, with the jars of the run."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    # The interpreter inside Flink's JVM knows nothing of a virtual environment.
    path = [os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    options = {
        "parallelism.default": str(PARALLELISM),
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "state.backend.type": "hashmap",
        "restart-strategy.type": "none",
        "execution.checkpointing.interval": run.checkpoints,
        "execution.checkpointing.dir": Path(run.workspace, "checkpoints").resolve().as_uri(),
        "execution.buffer-timeout.interval": "5 ms",
        "pipeline.object-reuse": "true",
    }
    configuration = Configuration()
    for name, text in options.items():
        configuration.set_string(name, text)
    found = StreamExecutionEnvironment.get_execution_environment(configuration)
    if run.jars:
        found.add_jars(*(Path(jar).resolve().as_uri() for jar in run.jars.split(",")))
    return found


def start_sql(run: RealTimeRun) -> RunningJob:
    """Start the SQL query."""
    from pyflink.table import StreamTableEnvironment

    tables = StreamTableEnvironment.create(environment(run))
    tables.execute_sql(f"create temporary table events ({_FIELDS}) with ({_options(_source(run))})")
    tables.execute_sql(
        "create temporary table counted (`key` bigint, `count` bigint, created bigint, primary key (`key`) "
        f"not enforced) with ({_options(_target(run))})"
    )
    # The newest creation time of a key is that of the event itself: a key is always in the same partition.
    query = "insert into counted select `key`, count(*), max(created) from events group by `key`"
    return _running(tables.execute_sql(query).get_job_client())


def _source(run: RealTimeRun) -> dict[str, str]:
    if run.has_topics:
        return {
            "connector": "kafka",
            "topic": run.source,
            "properties.bootstrap.servers": run.servers,
            "properties.group.id": "latency-flink",
            "scan.startup.mode": "earliest-offset",
            "format": "json",
        }
    place = Path(run.source).resolve().as_uri()
    return {"connector": "filesystem", "path": place, "format": "json", "source.monitor-interval": "2 ms"}


def _target(run: RealTimeRun) -> dict[str, str]:
    if not run.has_topics:
        return {"connector": "print"}
    return {
        "connector": "upsert-kafka",
        "topic": run.target,
        "properties.bootstrap.servers": run.servers,
        "properties.linger.ms": "1",
        "sink.delivery-guarantee": "at-least-once",
        "key.format": "json",
        "value.format": "json",
    }


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{text}'" for name, text in options.items())


def start_datastream(run: RealTimeRun) -> RunningJob:
    """Start the program of PyFlink's DataStream."""
    from pyflink.common import Types
    from pyflink.datastream import FlatMapFunction, KeyedProcessFunction, RuntimeContext
    from pyflink.datastream.state import ValueStateDescriptor

    class Counter(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            from pyflink.common import Row

            count = (self._count.value() or 0) + 1
            self._count.update(count)
            yield Row(value[0], count, value[1])

    class Recorder(FlatMapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._file = LatencyFile(run.latencies, "task")

        def flat_map(self, value: Any) -> Iterator[Any]:
            self._file.record(value[2])
            return iter(())

    env = environment(run)
    counted_type = Types.ROW_NAMED(["key", "count", "created"], [Types.LONG()] * 3)
    counted = (
        _events(env, run).key_by(lambda row: row[0], key_type=Types.LONG()).process(Counter(), output_type=counted_type)
    )
    if run.has_topics:
        counted.sink_to(_sink(run, counted_type))
    else:
        counted.flat_map(Recorder(), output_type=Types.LONG()).print()
    return _running(env.execute_async("latency"))


def _events(env: Any, run: RealTimeRun) -> Any:
    from pyflink.common import Duration, Row, Types, WatermarkStrategy
    from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
    from pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
    from pyflink.datastream.formats.json import JsonRowDeserializationSchema

    never = WatermarkStrategy.no_watermarks()
    event_type = Types.ROW_NAMED(["key", "created"], [Types.LONG()] * 2)
    if run.has_topics:
        schema = JsonRowDeserializationSchema.builder().type_info(event_type).build()
        topic = KafkaSource.builder().set_bootstrap_servers(run.servers).set_topics(run.source)
        topic = topic.set_group_id("latency-flink").set_starting_offsets(KafkaOffsetsInitializer.earliest())
        return env.from_source(topic.set_value_only_deserializer(schema).build(), never, "events")
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), run.source)
    source = files.monitor_continuously(Duration.of_millis(2)).build()

    def parse(line: str) -> Any:
        event = json.loads(line)
        return Row(event["key"], event["created"])

    return env.from_source(source, never, "events").map(parse, output_type=event_type)


def _sink(run: RealTimeRun, counted_type: Any) -> Any:
    from pyflink.datastream.connectors import DeliveryGuarantee
    from pyflink.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
    from pyflink.datastream.formats.json import JsonRowSerializationSchema

    schema = JsonRowSerializationSchema.builder().with_type_info(counted_type).build()
    records = KafkaRecordSerializationSchema.builder().set_topic(run.target).set_value_serialization_schema(schema)
    sink = KafkaSink.builder().set_bootstrap_servers(run.servers).set_record_serializer(records.build())
    sink = sink.set_property("linger.ms", "1").set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
    return sink.build()


def _running(client: Any) -> RunningJob:
    def end() -> str | None:
        status = client.get_job_status().result().name
        return None if status in _RUNNING else status

    return RunningJob(lambda: client.cancel().result(), end)


def start(run: RealTimeRun) -> RunningJob:
    return start_sql(run) if run.engine == "flink-sql" else start_datastream(run)


if __name__ == "__main__":
    serve(start)
