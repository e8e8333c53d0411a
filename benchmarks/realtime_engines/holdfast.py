"""Holdfast in real time, or by epochs: one program, two values of `execution.trigger`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from benchmarks.harness.realtime_run import (
    COUNTED,
    EVENTS,
    Latencies,
    RealTimeRun,
    RunningJob,
    serve,
)
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors import DeliveryGuarantee
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.formats.json import (
    JsonLinesFormat,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.spark.realtime import slots_of

TRIGGERS = {"holdfast-real-time": "real-time", "holdfast-real-time-1": "real-time", "holdfast-epochs": "continuous"}
_PRIME = 2_654_435_761
_SPARK = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


class Counter(KeyedProcessFunction):
    """Counts the events of a key."""

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value.key, count, value.created


def start(run: RealTimeRun) -> RunningJob:
    # A job by epochs writes a checkpoint with each epoch, as micro-batches of Spark do: its output waits for it.
    interval = run.checkpoints if TRIGGERS[run.engine] == "real-time" else "0 s"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for a session that Holdfast does not create
    master = f"local[{max(8, 2 * run.parallelism)}]"
    session = None if run.has_settings else SparkSession.builder.master(master).config(map=_SPARK).getOrCreate()
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.trigger": TRIGGERS[run.engine],
            "execution.checkpointing.dir": f"{run.workspace}/checkpoints",
            "execution.checkpointing.interval": interval,
            "parallelism.default": run.parallelism,
            # The default delay grows with each failure, so that the tenth kill would measure the delay.
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 1000,
            "restart-strategy.fixed-delay.delay": "1 s",
            "rest.enable": "false",
            **({"spark.master": master, **_SPARK, **run.spark} if session is None else {}),
        },
        spark=session,
    )
    counted = events(env, run).key_by("key").process(Counter(), COUNTED).uid("count")
    if run.has_topics:
        schema = JsonRowSerializationSchema.builder().with_type_info(COUNTED).build()
        records = KafkaRecordSerializationSchema.builder().set_topic(run.target).set_value_serialization_schema(schema)
        sink = KafkaSink.builder().set_bootstrap_servers(run.servers).set_record_serializer(records.build())
        guarantee = DeliveryGuarantee.EXACTLY_ONCE if run.is_exactly_once else DeliveryGuarantee.AT_LEAST_ONCE
        sink = sink.set_property("linger.ms", 1).set_delivery_guarantee(guarantee)
        counted.sink_to(sink.build()).uid("out")
    else:
        counted.for_each(Latencies(run.latencies)).uid("out")
    client = env.execute_async("latency")

    def end() -> str | None:
        status = client.get_job_status()
        return str(status) if status.is_terminal_state() else None

    def messages() -> list[float]:
        found: dict[int, float] = {}
        for (stage, _), metrics in sorted(client._master.job.engine.task_metrics().items()):  # as /metrics shows them
            found[stage] = found.get(stage, 0.0) + metrics.messages_out
        return list(found.values())[:-1]  # the last stage sends none

    return RunningJob(client.cancel, end, client.rescale, jvm_memory, messages, lambda: slots_of(env.spark))


def jvm_memory() -> dict[str, int]:
    """Return the bytes of the heap behind a collection, and of direct memory: that of Java's buffers and of Netty's."""
    jvm: Any = SparkContext._jvm
    jvm.java.lang.System.gc()
    management = jvm.java.lang.management.ManagementFactory
    pools = management.getPlatformMXBeans(jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean"))
    buffers = sum(pool.getMemoryUsed() for pool in pools if pool.getName() == "direct")
    netty = jvm.io.netty.util.internal.PlatformDependent.usedDirectMemory()  # -1: it takes buffers of Java
    return {"heap": management.getMemoryMXBean().getHeapMemoryUsage().getUsed(), "direct": buffers + max(0, netty)}


def events(env: StreamExecutionEnvironment, run: RealTimeRun) -> DataStream:
    never = WatermarkStrategy.no_watermarks()
    if run.input == "kafka":
        schema = JsonRowDeserializationSchema.builder().type_info(EVENTS).build()
        topic = KafkaSource.builder().set_bootstrap_servers(run.servers).set_topics(run.source)
        source: Any = topic.set_value_only_deserializer(schema).build()
    elif run.input == "files":
        files = FileSource.for_record_stream_format(JsonLinesFormat(EVENTS), run.source)
        source = files.monitor_continuously(Duration.of_millis(2)).build()
    else:
        keys = run.keys

        def event(number: int) -> tuple[int, int]:
            return number * _PRIME % keys, int(time.time() * 1e6)

        source = DataGeneratorSource(event, rows_per_second=run.rate, type_info=EVENTS)
    return env.from_source(source, never, "events").uid("events")


if __name__ == "__main__":
    serve(start)
