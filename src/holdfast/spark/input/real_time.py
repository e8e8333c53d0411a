"""Inputs of real-time jobs on Spark: how positions know them, and static frames, which are written to files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.source import SplitSource
from holdfast.runtime.graph.plan import JobPlan, SourcePlan
from holdfast.runtime.graph.source_positions import JobInputs, OffsetLine
from holdfast.runtime.graph.stream_graph import SourceNode, input_of
from holdfast.runtime.realtime.frame_files import FrameSource, write_frame
from holdfast.runtime.realtime.source_coordinator import is_written_by_engine
from holdfast.spark.failure import translate
from holdfast.spark.frame import element_type_of, frame_of, map_in_arrow, numbered_frame
from holdfast.spark.input.source import JobFrames
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for

_WRITTEN = "partition int, path string"


def describe_inputs(plan: JobPlan, session: SparkSession) -> JobInputs:
    """Return the inputs of a job as positions of jobs by epochs know them.

    Raises:
        ConfigurationError: An input has reserved columns.
    """
    framed = tuple(source for source in plan.sources if not _has_no_frame(source))
    own = JobInputs.of(_with_sources(plan, tuple(source for source in plan.sources if _has_no_frame(source))))
    if not framed:
        return own
    found = JobFrames(_with_sources(plan, framed), session).identities
    folders = max((line.folder for line in found.lines), default=-1) + 1
    lines = [OffsetLine(line.leaf, folders + line.folder) for line in own.lines]
    return JobInputs((*found.lines, *lines), (*found.static, *own.static))


def _has_no_frame(source: SourcePlan) -> bool:
    assert source.node is not None
    node = input_of(source.node)
    return isinstance(node, SourceNode) and node.frame is None and node.collection is None


def _with_sources(plan: JobPlan, sources: tuple[SourcePlan, ...]) -> JobPlan:
    first, *rest = plan.epoch_jobs
    return replace(plan, epoch_jobs=(replace(first, sources=sources), *rest))


def written_frames(job: JobDescriptor, session: SparkSession) -> Mapping[str, SplitSource]:
    """Return the static frames of a job, by uid of their source; each is written when the job begins to read it."""
    return {
        source.uid: FrameSource(job.job_root, source.element_type, partial(_write, source, job, session))
        for source in job.plan.sources
        if is_written_by_engine(source)
    }


def _write(source: SourcePlan, job: JobDescriptor, session: SparkSession) -> Sequence[str]:
    """Write a frame in a Spark job, and return its files in the order of partitions.

    Raises:
        HoldfastError: The Spark job failed.
    """
    assert source.node is not None
    root, job_id, token, options = job.job_root, job.job_id, job.token, dict(job.configuration)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_s3_options(Configuration(options))
        context = TaskContext.get()
        assert context is not None
        directory = JobDirectory(file_system_for(root), root, JobID.from_hex(job_id), create_subdir=False)
        partition = context.partitionId()
        path = write_frame(batches, directory, token, partition)
        if path is not None:
            yield pa.RecordBatch.from_arrays(
                [pa.array([partition], pa.int32()), pa.array([path])], ["partition", "path"]
            )

    try:
        frame = frame_of(source.node, session)
        session.sparkContext.setJobDescription(f"{job.job_name}: rows of {source.uid}")
        rows = map_in_arrow(numbered_frame(frame, element_type_of(frame)), write, _WRITTEN).collect()
    except HoldfastError:
        raise
    except Exception as error:
        raise translate(error, f"writing the rows of input {source.uid!r}") from error
    return [row["path"] for row in sorted(rows, key=lambda row: int(row["partition"]))]
