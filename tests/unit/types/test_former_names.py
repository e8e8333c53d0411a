"""Data that an older release wrote names modules that have other names now."""

from __future__ import annotations

import base64
import importlib
from datetime import timedelta

import pyarrow as pa
import pytest

from holdfast.common import Instant, JobStatus, Row, RowKind, Types
from holdfast.datastream.window import CountWindow, GlobalWindow, TimeWindow
from holdfast.kernel.watermark import WatermarkGeneratorContext
from holdfast.runtime.task.steps import _unpickled
from holdfast.types.program_classes import FORMER_MODULES, loads
from holdfast.types.serializer import snapshot_from_json

# Written by the release that still had `holdfast.types.row_kind`, `holdfast.types.instant` and
# `holdfast.types.information`.
WRITTEN = base64.b64decode(
    b"gAWVoAIAAAAAAAB9lCiMBGtpbmSUjBdob2xkZmFzdC50eXBlcy5yb3dfa2luZJSMB1Jvd0tpbmSUk5RLA4WUUpSMAmF0lIwWaG9s"
    b"ZGZhc3QudHlwZXMuaW5zdGFudJSMB0luc3RhbnSUk5QpgZR9lCiMB3NlY29uZHOUSweMBW5hbm9zlEsFdWKMA3Jvd5SMEmhvbGRm"
    b"YXN0LnR5cGVzLnJvd5SMBnJldml2ZZSTlIwBYZSFlEsBhZRLAoeUUpSMBHR5cGWUjCZob2xkZmFzdC50eXBlcy5pbmZvcm1hdGlv"
    b"bi5zdHJ1Y3RfdHlwZZSMElJvd1R5cGVJbmZvcm1hdGlvbpSTlGgThZSMKmhvbGRmYXN0LnR5cGVzLmluZm9ybWF0aW9uLmNvbGxl"
    b"Y3Rpb25fdHlwZZSME0xpc3RUeXBlSW5mb3JtYXRpb26Uk5SMJ2hvbGRmYXN0LnR5cGVzLmluZm9ybWF0aW9uLmRlY2ltYWxfdHlw"
    b"ZZSMCF9kZWNpbWFslJOUSwlLAomHlFKUhZRSlIWUfZSHlFKUjAd3aW5kb3dzlF2UKIweaG9sZGZhc3QucnVudGltZS53aW5kb3cu"
    b"d2luZG93lIwKVGltZVdpbmRvd5STlCmBlE59lCiMA2VuZJRLBYwFc3RhcnSUSwB1hpRiaC2MC0NvdW50V2luZG93lJOUKYGUTn2U"
    b"jAJpZJRLA3OGlGJoLYwMR2xvYmFsV2luZG93lJOUKYGUZYwGbGVuZ3RolIwUaG9sZGZhc3QuY29tbW9uLnRpbWWUjAhUaW1lU3Bh"
    b"bpSTlEsASwNLAIeUUpSMBnN0YXR1c5SMG2hvbGRmYXN0LnJ1bnRpbWUuam9iLnN0YXR1c5SMCUpvYlN0YXR1c5STlIwHUlVOTklO"
    b"R5SFlFKUdS4="
)


def test_pickled_state_of_an_older_release_is_read() -> None:
    (found,) = Types.PICKLED_BYTE_ARRAY().to_list(pa.array([WRITTEN]))

    assert found["kind"] is RowKind.DELETE
    assert found["at"] == Instant(7, 5)
    assert found["row"] == Row(a=1)
    assert found["row"].get_row_kind() is RowKind.UPDATE_AFTER
    assert found["type"] == Types.ROW_NAMED(["a"], [Types.LIST(Types.DECIMAL(9, 2))])
    assert found["windows"] == [TimeWindow(0, 5), CountWindow(3), GlobalWindow()]
    assert found["length"] == timedelta(seconds=3)
    assert found["status"] is JobStatus.RUNNING


def test_a_watermark_generator_of_an_older_release_is_read() -> None:
    found = _unpickled(base64.b64encode(WRITTEN).decode(), WatermarkGeneratorContext(0, 0, 0))

    assert found["kind"] is RowKind.DELETE  # type: ignore[index]


def test_a_snapshot_of_an_older_release_is_read() -> None:
    document = {
        "class": "holdfast.types.information.abstract_type:ValueSerializerSnapshot",
        "version": 1,
        "content": "bigint",
    }

    assert snapshot_from_json(document) == Types.LONG().create_serializer().snapshot()


@pytest.mark.parametrize("former", FORMER_MODULES)
def test_a_former_module_is_gone_and_the_present_one_exists(former: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(former)

    importlib.import_module(FORMER_MODULES[former])


@pytest.mark.parametrize(
    "former",
    [
        "holdfast.datastream.connectors.kafka.record.record_serialization:KafkaRecordSerializationSchema",
        "holdfast.datastream.connectors.kafka.record.record_serialization:KafkaRecordSerializationSchemaBuilder",
        "holdfast.datastream.formats.text_lines:StreamFormat",
        "holdfast.kernel.option:ConfigOption",
        "holdfast.runtime.function.broadcast:BaseBroadcastProcessFunction",
        "holdfast.runtime.function.broadcast:BroadcastProcessFunction",
        "holdfast.runtime.function.broadcast:KeyedBroadcastProcessFunction",
        "holdfast.runtime.function.two_inputs:CoFlatMapFunction",
        "holdfast.runtime.function.two_inputs:CoGroupFunction",
        "holdfast.runtime.function.two_inputs:CoMapFunction",
        "holdfast.runtime.function.two_inputs:CoProcessFunction",
        "holdfast.runtime.function.two_inputs:JoinFunction",
        "holdfast.runtime.function.two_inputs:KeyedCoProcessFunction",
        "holdfast.runtime.function.two_inputs:ProcessJoinFunction",
        "holdfast.runtime.function.two_inputs:RichCoFlatMapFunction",
        "holdfast.runtime.function.two_inputs:RichCoMapFunction",
        "holdfast.runtime.job.status:JobExecutionResult",
        "holdfast.runtime.job.status:JobStatus",
        "holdfast.runtime.operator.vectorised.batch_function:BatchContext",
        "holdfast.runtime.operator.vectorised.batch_function:BatchFunction",
        "holdfast.runtime.operator.vectorised.batch_function:ColumnState",
        "holdfast.runtime.window.built_in_trigger:ContinuousEventTimeTrigger",
        "holdfast.runtime.window.built_in_trigger:ContinuousProcessingTimeTrigger",
        "holdfast.runtime.window.built_in_trigger:CountTrigger",
        "holdfast.runtime.window.built_in_trigger:DeltaTrigger",
        "holdfast.runtime.window.built_in_trigger:EventTimeTrigger",
        "holdfast.runtime.window.built_in_trigger:NeverTrigger",
        "holdfast.runtime.window.built_in_trigger:ProcessingTimeTrigger",
        "holdfast.runtime.window.built_in_trigger:PurgingTrigger",
        "holdfast.runtime.window.time_window_assigner:DynamicEventTimeSessionWindows",
        "holdfast.runtime.window.time_window_assigner:DynamicProcessingTimeSessionWindows",
        "holdfast.runtime.window.time_window_assigner:EventTimeSessionWindows",
        "holdfast.runtime.window.time_window_assigner:ProcessingTimeSessionWindows",
        "holdfast.runtime.window.time_window_assigner:SessionWindowTimeGapExtractor",
        "holdfast.runtime.window.time_window_assigner:SlidingEventTimeWindows",
        "holdfast.runtime.window.time_window_assigner:SlidingProcessingTimeWindows",
        "holdfast.runtime.window.time_window_assigner:TumblingEventTimeWindows",
        "holdfast.runtime.window.time_window_assigner:TumblingProcessingTimeWindows",
        "holdfast.runtime.window.window_function:AllWindowFunction",
        "holdfast.runtime.window.window_function:ProcessAllWindowFunction",
        "holdfast.runtime.window.window_function:ProcessWindowFunction",
        "holdfast.runtime.window.window_function:WindowFunction",
        "holdfast.state.declaration.api:AggregatingState",
        "holdfast.state.declaration.api:AppendingState",
        "holdfast.state.declaration.api:BroadcastState",
        "holdfast.state.declaration.api:FoldingState",
        "holdfast.state.declaration.api:FunctionInitializationContext",
        "holdfast.state.declaration.api:FunctionSnapshotContext",
        "holdfast.state.declaration.api:KeyedStateStore",
        "holdfast.state.declaration.api:ListState",
        "holdfast.state.declaration.api:ManagedInitializationContext",
        "holdfast.state.declaration.api:MapState",
        "holdfast.state.declaration.api:MergingState",
        "holdfast.state.declaration.api:OperatorStateStore",
        "holdfast.state.declaration.api:ReadOnlyBroadcastState",
        "holdfast.state.declaration.api:ReducingState",
        "holdfast.state.declaration.api:State",
        "holdfast.state.declaration.api:StatePartitionStreamProvider",
        "holdfast.state.declaration.api:StateSnapshotContext",
        "holdfast.state.declaration.api:ValueState",
        "holdfast.state.declaration.descriptor:AggregatingStateDescriptor",
        "holdfast.state.declaration.descriptor:FoldingStateDescriptor",
        "holdfast.state.declaration.descriptor:ListStateDescriptor",
        "holdfast.state.declaration.descriptor:MapStateDescriptor",
        "holdfast.state.declaration.descriptor:ReducingStateDescriptor",
        "holdfast.state.declaration.descriptor:StateDescriptor",
        "holdfast.state.declaration.descriptor:ValueStateDescriptor",
        "holdfast.state.declaration.function:AggregateFunction",
        "holdfast.state.declaration.function:FoldFunction",
        "holdfast.state.declaration.function:ReduceFunction",
        "holdfast.state.declaration.ttl_config:StateTtlConfig",
        "holdfast.types.atomic:AtomicTypeInformation",
        "holdfast.types.atomic:CharTypeInformation",
        "holdfast.types.encoder:Encoder",
        "holdfast.types.information.abstract_type:TypeInformation",
        "holdfast.types.information.atomic_type:AtomicTypeInformation",
        "holdfast.types.information.changelog_type:ChangelogTypeInformation",
        "holdfast.types.information.collection_type:ListTypeInformation",
        "holdfast.types.information.collection_type:MapTypeInformation",
        "holdfast.types.information.decimal_type:DecimalTypeInformation",
        "holdfast.types.information.opaque_type:PickledTypeInformation",
        "holdfast.types.information.struct_type:RowTypeInformation",
        "holdfast.types.information.struct_type:TupleTypeInformation",
        "holdfast.types.information.type_information:Types",
        "holdfast.types.instant:Instant",
        "holdfast.types.row_kind:RowKind",
        "holdfast.types.serialization_schema:ByteArraySchema",
        "holdfast.types.serialization_schema:DeserializationSchema",
        "holdfast.types.serialization_schema:RowFieldExtractorSchema",
        "holdfast.types.serialization_schema:SerializationSchema",
        "holdfast.types.serialization_schema:SimpleStringSchema",
        "holdfast.types.information.record_type:DataclassTypeInformation",
        "holdfast.types.information.record_type:AvroRecordTypeInformation",
        "holdfast.types.information.opaque_type:SerializerTypeInformation",
        "holdfast.types.information.sealed_type:SealedTypeInformation",
        "holdfast.types.information.atomic_type:CharTypeInformation",
        "holdfast.types.information.abstract_type:ValueSerializer",
    ],
)
def test_a_public_class_is_found_under_its_former_module(former: str) -> None:
    module, _, name = former.partition(":")

    found = loads(f"c{module}\n{name}\n.".encode())

    assert found.__name__ == name


def test_a_class_that_never_existed_is_reported_as_such() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"holdfast\.types\.never"):
        loads(b"choldfast.types.never\nThing\n.")
