"""Frames of the epoch runner: Arrow tables, to which a transform of frames is a function `Table -> Table`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.exchange.layout import stamped_schema
from holdfast.runtime.graph.plan import JobPlan, SourcePlan
from holdfast.runtime.graph.stream_graph import FrameTransformNode, transforms_of
from holdfast.runtime.job.engine import StagedInput
from holdfast.runtime.operator import user_error
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.conversion.times_of_day import with_times


def staged_elements(plan: JobPlan, staged: StagedInput, epoch: int) -> dict[str, pa.RecordBatch]:
    """What the sources of a later epoch job hold, by uid.

    Raises:
        ConfigurationError: A transform does not take a table and return one with the columns that it was declared with.
        UserFunctionError: A transform raised.
    """
    return {
        source.uid: _one_batch(_elements(source, staged, epoch)) for source in plan.epoch_jobs[staged.epoch_job].sources
    }


def _elements(source: SourcePlan, staged: StagedInput, epoch: int) -> pa.Table:
    transforms = [] if source.node is None else transforms_of(source.node)
    schema = element_schema(transforms[0].inputs[0].element_type) if transforms else stamped_schema(source)
    tables = [with_times(pq.read_table(path, columns=schema.names), schema) for path in staged.of(source)]
    table = pa.concat_tables([schema.empty_table(), *tables])
    for node in transforms:
        table = _transformed(node, table, epoch)
    return table


def _transformed(node: FrameTransformNode, table: pa.Table, epoch: int) -> pa.Table:
    try:
        result = node.function(table)
    except HoldfastError:
        raise
    except Exception as error:
        raise user_error(error, node.identity, None, epoch, "transforming a frame") from error
    wanted = element_schema(node.element_type)
    if not isinstance(result, pa.Table) or result.schema.names != wanted.names:
        raise ConfigurationError(
            f"transform() {node.name!r} runs without Spark here, where frames are Arrow tables: it must return a table "
            f"with the columns {wanted.names!r}, not {result!r}"
        )
    return result.cast(wanted)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
