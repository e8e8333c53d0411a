"""The environment: where a program starts; the only module of this package that uses Spark."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY, SAVEPOINT_DIRECTORY, CheckpointingMode
from holdfast.datastream.connectors.base import RealTimeSource, Source
from holdfast.datastream.environment.execution_config import ExecutionConfig
from holdfast.datastream.environment.launch import (
    ExecutedJobs,
    JobNames,
    Program,
    effective_configuration,
    exit_if_interrupted,
    name_from_outside,
    notify_launched,
    record_interruption,
    require_one_job,
    stop_if_planning,
)
from holdfast.datastream.environment.python_dependencies import (
    require_file,
    ship_archive,
    ship_modules,
    ship_requirements,
)
from holdfast.datastream.no_effect import accept_without_effect
from holdfast.datastream.sinks.driver_sinks import CollectSink, Mailbox
from holdfast.datastream.state_backend import StateBackend, options_of
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.operation import declared_type
from holdfast.datastream.stream.stream_factory import StreamFactory, aligned_source, elements_of, read_by
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.default_log import install_default_handler
from holdfast.kernel.failure_text import install_error_display
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.sink import is_pickled
from holdfast.runtime.function.source import SourceListener, SplitInput, SplitSource
from holdfast.runtime.graph.input_matching import COLLECTION
from holdfast.runtime.graph.stream_graph import FrameTransformNode, Node, SinkNode, SourceNode, StreamGraph
from holdfast.runtime.job.control import JobExecutionResult
from holdfast.runtime.job.options import (
    AUTO_GENERATE_UIDS,
    DEFAULT_PARALLELISM,
    EXECUTION_TRIGGER,
    JOB_ID,
    JOB_NAME,
    MAX_PARALLELISM,
    RUNTIME_MODE,
    RuntimeExecutionMode,
    is_real_time_trigger,
)
from holdfast.runtime.master.job_client import JobClient, NotebookNames, is_notebook
from holdfast.types.arrow import VALUE_COLUMN, elements_to_batch
from holdfast.types.type_information import TypeInformation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


__all__ = ["CollectedElements", "JobExecutionResult"]
_COLLECT_UID: Final = "execute_and_collect"  # a program cannot set a uid for this sink


class CollectedElements(Iterator[Any]):
    """The elements of a stream as the epochs of its running job complete; close it, or use it in a `with` statement.

    The job waits when the reader is far behind. If the job fails, its error is raised after the elements of the
    completed epochs. An interrupted wait for the next element cancels the job, because nobody would read on.
    """

    def __init__(self, mailbox: Mailbox, client: JobClient) -> None:
        self._mailbox = mailbox
        self._client = client
        self._elements = iter(mailbox)
        self._watcher = threading.Thread(target=self._watch, name="holdfast-collect", daemon=True)
        self._watcher.start()

    def __next__(self) -> Any:
        try:
            return next(self._elements)
        except KeyboardInterrupt:
            self._let_go()
            raise

    def next(self) -> Any:
        """Return the next element; blocks. Raises StopIteration at the end of the job."""
        return next(self)

    def get_job_client(self) -> JobClient:
        """Return the handle of the running job."""
        return self._client

    def close(self) -> None:
        """Cancel the job if it still runs, and wait for its end; elements that were not read are lost."""
        self._let_go()
        self._watcher.join()

    def __repr__(self) -> str:
        return f"<elements of {self._client!r}>"

    def __enter__(self) -> CollectedElements:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _let_go(self) -> None:
        self._mailbox.close()
        self._elements = iter(())
        if not self._client.get_job_status().is_terminal_state():
            self._client.cancel()

    def _watch(self) -> None:
        try:
            self._client.await_termination()
        except Exception as error:  # noqa: BLE001 - the reader of the results gets it
            self._mailbox.end(error)
        else:
            self._mailbox.end()


@accept_without_effect
class StreamExecutionEnvironment:
    """The settings of a program and the streams that it defines; `execute` runs them as one job.

    >>> env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 2})
    >>> env.get_parallelism()
    2
    """

    if TYPE_CHECKING:  # made by `accept_without_effect`
        set_buffer_timeout: Callable[[int], Self]
        get_buffer_timeout: Callable[[], int]
        disable_operator_chaining: Callable[[], Self]
        is_chaining_enabled: Callable[[], bool]
        is_chaining_of_operators_with_different_max_parallelism_enabled: Callable[[], bool]
        register_slot_sharing_group: Callable[[Any], Self]
        enable_changelog_state_backend: Callable[[bool], Self]
        is_changelog_state_backend_enabled: Callable[[], bool | None]

    def __init__(self, configuration: Configuration, spark: SparkSession | None) -> None:
        self._program = configuration
        self._spark = spark
        self._stream_factory = StreamFactory()
        self._sinks: list[SinkNode] = []
        self._job_names = JobNames(_executed)
        self._checkpoint_config = CheckpointConfig(configuration, self.get_configuration)
        self._execution_config = ExecutionConfig(configuration, self.get_configuration)

    @classmethod
    def get_execution_environment(
        cls,
        configuration: Configuration | Mapping[str, Any] | None = None,
        *,
        spark: SparkSession | None = None,
    ) -> StreamExecutionEnvironment:
        """Return a new environment.

        Args:
            configuration: Options of the job. Those of the command line (`holdfast run -D`) win over them.
            spark: The session to run on. Without one, that of the first DataFrame, else the active one, else a new one
                with the `spark.*` options of the configuration.

        Raises:
            ConfigurationError: A value does not fit its option.
        """
        if isinstance(configuration, Configuration):
            return cls(configuration.clone(), spark)
        return cls(Configuration(configuration), spark)

    @property
    def spark(self) -> SparkSession:
        """The Spark session of the environment: the given one, else the active one, else one made at the first use."""
        from holdfast.spark.session import get_or_create

        if self._spark is None:
            self._spark = get_or_create(self.get_configuration())
        return self._spark

    def get_configuration(self) -> Configuration:
        """Return a copy of the options in force: those of the program, and over them those of the command line."""
        return effective_configuration(self._program)

    def configure(self, configuration: Configuration | Mapping[str, Any]) -> None:
        """Set further options of the program.

            >>> env.configure({"state.backend.type": "columnar"})

        Raises:
            ConfigurationError: A value does not fit its option.
        """
        self._program.add_all(configuration)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of subtasks of keyed operators that set none of their own."""
        self._program.set(DEFAULT_PARALLELISM, parallelism)
        return self

    def get_parallelism(self) -> int | None:
        """Return the number that was set; None for Spark's default parallelism."""
        return self.get_configuration().get(DEFAULT_PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups of keyed operators that set none of their own."""
        self._program.set(MAX_PARALLELISM, max_parallelism)
        return self

    def get_max_parallelism(self) -> int | None:
        """Return the number that was set; None if it is derived from the parallelism."""
        return self.get_configuration().get(MAX_PARALLELISM)

    def enable_checkpointing(
        self, interval: int = 0, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Complete a checkpoint at the first end of an epoch after an interval.

            >>> env.enable_checkpointing(60_000).get_checkpoint_interval()
            60000

        Args:
            interval: Milliseconds since the last checkpoint; 0 for a checkpoint in every epoch.
            mode: `CheckpointingMode.EXACTLY_ONCE`, the default, or AT_LEAST_ONCE.
        """
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Return the settings of checkpoints; a change of them changes the options of the program."""
        return self._checkpoint_config

    def set_state_backend(self, state_backend: StateBackend) -> StreamExecutionEnvironment:
        """Set the state backend, and the checkpoint storage where an older backend names one.

            >>> _ = env.set_state_backend(HashMapStateBackend())

        Raises:
            ConfigurationError: It is a backend of your own: set the option `state.backend.type` to the class path of
                its factory.
        """
        self._program.add_all(options_of(state_backend))
        return self

    def get_config(self) -> ExecutionConfig:
        """Return the settings that PyFlink calls the config; a change of them changes the options of the program."""
        return self._execution_config

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Set whether reductions emit after each element, or once a key at the end of the input.

        Call it before streams are defined.

            >>> _ = env.set_runtime_mode(RuntimeExecutionMode.BATCH)
            >>> rows = env.from_collection([("oslo", 3), ("oslo", 4)], "city string, n bigint")
            >>> list(rows.key_by("city").sum("n").execute_and_collect())
            [Row(city='oslo', n=7)]

        Args:
            execution_mode: STREAMING, the default; BATCH, for bounded inputs only; AUTOMATIC is BATCH where all inputs
                of a stream are bounded.

        Raises:
            ConfigurationError: It is no such mode.
        """
        self._program.set(RUNTIME_MODE, execution_mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Return the interval of checkpoints in milliseconds; 0 for a checkpoint in every epoch."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return the checkpointing mode: exactly once, unless set otherwise."""
        return self._checkpoint_config.get_checkpointing_mode()

    get_checkpointing_consistency_mode = get_checkpointing_mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return False: a shuffle is the barrier, and there is nothing to align."""
        return self._checkpoint_config.is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """Return False: a shuffle is the barrier, and there is nothing to align."""
        return self._checkpoint_config.is_force_unaligned_checkpoints()

    def set_default_savepoint_directory(self, directory: str) -> Self:
        """Set the directory of savepoints that name none."""
        self._program.set(SAVEPOINT_DIRECTORY, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Return the directory of savepoints that name none; None if it was not set."""
        return self.get_configuration().get(SAVEPOINT_DIRECTORY)

    def get_default_local_parallelism(self) -> int | None:
        """Return the parallelism that was set; None for that of the session's master."""
        return self._program.get(DEFAULT_PARALLELISM)

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the parallelism: there is one, wherever the session runs."""
        self._program.set(DEFAULT_PARALLELISM, parallelism)

    def get_execution_plan(self) -> str:
        """Return the steps of the program so far, as JSON: `id`, `type`, and the ids of their inputs."""
        nodes = [
            {"id": node.identity, "type": node.name, "predecessors": [{"id": other.identity} for other in node.inputs]}
            for node in self.get_stream_graph().nodes
        ]
        return json.dumps({"nodes": nodes})

    def add_python_file(self, file_path: str) -> None:
        """Put a module, a zipped package, or the contents of a directory on the import path of all workers.

        A file goes by `SparkContext.addPyFile`; a directory is packed as it is now, and goes by `addArchive`.

        Raises:
            ConfigurationError: It does not exist, or this Spark cannot send it to workers.
        """
        ship_modules(self.spark.sparkContext, file_path)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpack an archive beside all workers, by `SparkContext.addArchive`.

        Functions find it by `pyspark.SparkFiles.get(target_dir)`, or by the archive's own name without one.

        Raises:
            ConfigurationError: It does not exist, or Spark cannot send it to workers.
        """
        ship_archive(self.spark.sparkContext, archive_path, target_dir)

    def set_python_executable(self, python_exec: str) -> None:
        """Set the Python of the workers, as `spark.pyspark.python`.

        Raises:
            ConfigurationError: The session exists already.
        """
        self._of_session("set_python_executable()", "spark.pyspark.python", python_exec)

    def add_jars(self, *jars_path: str) -> None:
        """Add jars for the sources and sinks of Spark, as `spark.jars`.

        Raises:
            ConfigurationError: The session exists already, or a jar does not exist.
        """
        for path in jars_path:
            if "*" not in path:  # Spark takes patterns, too
                require_file("add_jars()", path)
        before = self._program.get_string("spark.jars", "")
        self._of_session("add_jars()", "spark.jars", ",".join([*filter(None, [before]), *jars_path]))

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install packages beside the driver and send them to all workers, by `SparkContext.addArchive`. Blocks.

        The driver's Python and platform must be those of the workers; the program itself does not see the packages.

        Args:
            requirements_file_path: A requirements file of pip.
            requirements_cache_dir: A directory with the packages, instead of the network.

        Raises:
            ConfigurationError: The file or the directory does not exist, or pip cannot install the packages.
        """
        ship_requirements(self.spark.sparkContext, requirements_file_path, requirements_cache_dir)

    def add_classpaths(self, *classpaths: str) -> NoReturn:
        """Raise an error: jars are given to Spark.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(f"add_classpaths{classpaths!r}: jars are for Spark here: call add_jars().")

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> NoReturn:
        """Raise an error: `env.spark.sparkContext.addFile()` sends files to tasks.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"register_cached_file({file_path!r}): call env.spark.sparkContext.addFile(), and SparkFiles.get() in "
            "tasks."
        )

    def add_source(self, source_func: Any, source_name: str = "Custom Source", type_info: Any = None) -> NoReturn:
        """Raise an error: a `SourceFunction` is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "add_source() takes a class of Java: use from_source() with a Source of holdfast.datastream.connectors, or "
            "from_dataframe() with any frame that Spark reads."
        )

    def create_input(self, input_format: Any, type_info: Any = None) -> NoReturn:
        """Raise an error: an `InputFormat` is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "create_input() takes a class of Java: use from_source() with a Source of holdfast.datastream.connectors, "
            "or from_dataframe() with any frame that Spark reads."
        )

    def close(self) -> None:
        """Do nothing: the session is Spark's, and a `JobClient` ends a job."""

    def from_dataframe(self, frame: DataFrame) -> DataStream:
        """Return a stream of the rows of a Spark DataFrame, streaming or static.

            >>> frame = spark.readStream.schema("city string, n bigint").parquet("/data/in")  # doctest: +SKIP
            >>> env.from_dataframe(frame).uid("in").print()  # doctest: +SKIP

        Raises:
            ConfigurationError: It is no DataFrame of a classic session, or has columns without a type here.
        """
        from holdfast.spark.frame import element_type_of

        element_type = element_type_of(frame)
        if self._spark is None:
            self._spark = frame.sparkSession
        return self._rows(frame, element_type, "dataframe")

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str | None = None,
        type_info: Any = None,
    ) -> DataStream:
        """Return a stream of what a source reads; see `holdfast.datastream.connectors`.

            >>> numbers = env.from_source(NumberSequenceSource(1, 3))  # doctest: +SKIP
            >>> sorted(numbers.execute_and_collect())  # doctest: +SKIP
            [1, 2, 3]

        Args:
            source: The source.
            watermark_strategy: How event time follows from the elements, by default not at all. One without an
                assigner takes the timestamps of the source, if it has any.
            source_name: Name of the input, by default that of the source's class. `uid` of the stream identifies its
                position in checkpoints; without it the uid is derived from the name and from what is read.
            type_info: Type of the elements where the source leaves it open.

        Raises:
            ConfigurationError: It is no source, cannot be read as it is described, or has elements of another type.
        """
        if isinstance(source, type) or not isinstance(source, Source):
            raise ConfigurationError(
                f"from_source() takes an instance of holdfast.datastream.connectors.Source, not {source!r}."
            )
        if watermark_strategy is None:
            watermark_strategy = WatermarkStrategy.no_watermarks()
        if source_name is None:
            source_name = type(source).__name__
        is_real_time = is_real_time_trigger(self.get_configuration().get(EXECUTION_TRIGGER))
        source, aligned = aligned_source(source, watermark_strategy, is_real_time=is_real_time)
        if isinstance(source, RealTimeSource):
            rows = self._real_time(source, source_name, type_info)
            return elements_of(source, rows, watermark_strategy, type_info, aligned=aligned)
        from holdfast.spark.frame import element_type_of

        frame = source.create_frame(self.spark)
        element_type, splits = source.element_type(), source.splits()
        listener = source.checkpoint_listener()
        if splits is not None:
            assert element_type is not None
            rows = self._rows(frame, element_type_of(frame), source_name, splits, listener, source.split_source())
            return elements_of(
                source, rows, watermark_strategy, type_info, read_by(splits, rows, element_type), aligned
            )
        if element_type is None:
            element_type = element_type_of(frame)
        else:
            frame = frame.toDF(VALUE_COLUMN)
        rows = self._rows(frame, element_type, source_name, None, listener, source.split_source())
        return elements_of(source, rows, watermark_strategy, type_info, aligned=aligned)

    def _real_time(self, source: RealTimeSource, name: str, type_info: Any) -> DataStream:
        own = source.element_type()
        node = SourceNode(
            name=name,
            element_type=declared_type(type_info, "from_source") if own is None else own,
            is_streaming=not source.is_bounded(),
            reads=source.description(),
            listener=source.checkpoint_listener(),
            split_source=source,
        )
        return DataStream(self, node)

    def _rows(
        self,
        frame: DataFrame,
        element_type: TypeInformation,
        name: str,
        splits: SplitInput | None = None,
        listener: SourceListener | None = None,
        split_source: SplitSource | None = None,
    ) -> DataStream:
        from holdfast.spark.frame import is_streaming
        from holdfast.spark.input.description import description_of

        node = SourceNode(
            name=name,
            element_type=element_type,
            frame=frame,
            is_streaming=is_streaming(frame),
            reads=description_of(frame),
            splits=splits,
            listener=listener,
            split_source=split_source,
        )
        return DataStream(self, node)

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream:
        """Return a bounded stream of the given elements.

            >>> rows = env.from_collection([("oslo", 3), ("rome", 5)], "city string, n bigint")
            >>> list(rows.execute_and_collect())
            [Row(city='oslo', n=3), Row(city='rome', n=5)]

        Args:
            collection: The elements.
            type_info: Their type: type information, DDL, an Arrow or Spark type. Without it they are pickled.

        Raises:
            OutputTypeError: An element does not match the type.
        """
        element_type = declared_type(type_info, "from_collection")
        elements = list(collection)
        batch = elements_to_batch(elements, element_type, "from_collection")
        node = SourceNode(
            name="collection",
            element_type=element_type,
            collection=elements,
            reads=f"a collection of {element_type.ddl}",
            elements=_describe_elements(batch, element_type),
        )
        return DataStream(self, node)

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the job and block until it has ended.

        A job that runs again under its name resumes from its newest completed checkpoint. SIGTERM ends it after the
        current epoch; a program that then executes a further job ends there, with exit code 0.

            >>> _ = env.from_collection([1, 2], "bigint").print()
            >>> result = env.execute("numbers")
            1
            2

        Args:
            job_name: Name of the job and, unless `pipeline.job-id` is set, of its directory. The default is
                `pipeline.name`, else the name of the script; from the second job of a process on with its number:
                `script-2`. The same steps in another environment are the same job again. `pipeline.name` on the
                command line wins over all of them.

        Raises:
            ConfigurationError: The program cannot run as it is written.
            RestoreError: The checkpoint does not fit the program.
            FencedError: Another process has taken over the job.
            JobExecutionError: The job failed for good.
        """
        started = time.monotonic()
        client = self.execute_async(job_name)
        status = client.run_to_end()
        record_interruption(client)
        took = round(1000 * (time.monotonic() - started))
        return JobExecutionResult(client.get_job_id(), status, took, client.ending)

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the job in a thread of this process and return its handle; see `execute`.

        The streams defined so far belong to this job: the environment starts empty again. In a notebook, an earlier run
        of the same cell is stopped after its epoch first, and this one goes on from there.

        Raises:
            ConfigurationError: The program cannot run as it is written.
        """
        if job_name is not None and not isinstance(job_name, str):
            raise ConfigurationError(f"The name of a job is a text, not {job_name!r}.")
        return self._start(name_from_outside(job_name) or job_name)

    def _start(self, job_name: str | None, *, is_once: bool = False) -> JobClient:
        install_default_handler()
        install_error_display()
        configuration = self.get_configuration()
        configuration.validate()
        graph = self.get_stream_graph()
        self._require_bounded(graph)
        self._sinks = []
        directory = _shared_directory(configuration)
        name = job_name or self._next_name(configuration.get(JOB_NAME), graph, directory)
        require_one_job(name)
        self._require_own_id(name, configuration)
        self._job_names.add(name, directory)
        stop_if_planning(Program(graph, name, configuration, self._spark))
        exit_if_interrupted(name)
        from holdfast.spark.launch import launch

        return notify_launched(launch(graph, name, configuration, self._spark, is_once=is_once))

    def _next_name(self, configured: str | None, graph: StreamGraph, directory: str | None) -> str:
        """Return the name of a job without one: the same when the program runs again, another one for each job."""
        if is_notebook():
            return _notebook_names.next(configured)
        return self._job_names.next(configured or _script_name(), graph, directory)

    def _require_own_id(self, name: str, configuration: Configuration) -> None:
        others = self._job_names.other_than(name)
        if others and configuration.contains(JOB_ID):
            raise ConfigurationError(
                f"{JOB_ID.key} is the id of one job, but this program executes {others[-1]!r} and then {name!r}: "
                "remove the option, and the id of each job follows from its name."
            )

    def get_stream_graph(self) -> StreamGraph:
        """Return the program as it was defined so far, each step with its uid.

        Raises:
            ConfigurationError: It has no sink, uses a uid twice, or lacks one where none may be derived.
        """
        return StreamGraph(self._sinks, auto_generate_uids=self.get_configuration().get(AUTO_GENERATE_UIDS))

    def _of_session(self, what: str, key: str, value: str) -> None:
        if self._spark is not None:
            raise ConfigurationError(
                f"{what} comes too late: the Spark session exists. Set the option {key} where the session is made, or "
                "call this before anything else of the environment."
            )
        self._program.set_string(key, value)

    def _emits_final_values(self, node: Node) -> bool:
        """Return whether reductions of a step's elements emit once a key, at the end."""
        mode = self.get_configuration().get(RUNTIME_MODE)
        if mode is not RuntimeExecutionMode.AUTOMATIC:
            return mode is RuntimeExecutionMode.BATCH
        reached, waiting = {node}, [node]
        while waiting:
            found = waiting.pop()
            if isinstance(found, SourceNode) and found.is_streaming:
                return False
            waiting += set(found.inputs) - reached
            reached.update(found.inputs)
        return True

    def _require_bounded(self, graph: StreamGraph) -> None:
        """Reject a program in batch mode whose input does not end.

        Raises:
            ConfigurationError: It is such a program.
        """
        if self.get_configuration().get(RUNTIME_MODE) is not RuntimeExecutionMode.BATCH:
            return
        unbounded = [node.name for node in graph.of(SourceNode) if node.is_streaming]
        if unbounded:
            raise ConfigurationError(
                f"{RUNTIME_MODE.key} is BATCH, but the input {unbounded[0]!r} is a stream, which has no end: read it "
                "with spark.read, or leave the mode at STREAMING."
            )

    def _add_sink(self, node: SinkNode) -> None:
        self._sinks.append(node)

    def _execute_and_collect(
        self, stream: DataStream, job_name: str | None, limit: int | None
    ) -> CollectedElements | list[Any]:
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ConfigurationError(f"A limit is a whole number of at least 0, not {limit!r}.")
        mailbox, others = Mailbox(stream.get_type()), set(self._sinks)
        stream.sink_to(CollectSink(mailbox.name)).name("collect").uid(_COLLECT_UID)
        try:
            # Without a name of its own it is a new job each time.
            if job_name:
                client = self.execute_async(job_name)
            else:
                client = self._start(f"{_script_name()}-{new_nonce()}", is_once=True)
        except BaseException:
            self._sinks = [sink for sink in self._sinks if sink in others]
            mailbox.close()
            raise
        elements = CollectedElements(mailbox, client)
        if limit is None:
            return elements
        with elements:
            return list(islice(elements, limit))

    def _transformed_type(self, node: Node, function: Callable[[Any], Any]) -> TypeInformation:
        """Return the columns that a function over frames makes of a step's frame."""
        from holdfast.spark.frame import element_type_of, frame_of

        probe = FrameTransformNode(inputs=(node,), name="transform", element_type=node.element_type, function=function)
        return element_type_of(frame_of(probe, self.spark))


_notebook_names = NotebookNames()
_executed = ExecutedJobs()


def _describe_elements(batch: pa.RecordBatch, element_type: TypeInformation) -> str:
    """Return a text that differs for other elements. Pickled ones are only counted: two pickles of one may differ."""
    text = f"{COLLECTION}{batch.num_rows} elements"
    if is_pickled(element_type):
        return text
    return f"{text}, digest {hashlib.sha256(batch.serialize()).hexdigest()[:16]}"


def _shared_directory(configuration: Configuration) -> str | None:
    """Return where another environment of the process could find the job by its name; None in a shell."""
    is_shell = hasattr(sys, "ps1")  # there a program that was changed is executed again, and goes on
    return None if is_shell or configuration.contains(JOB_ID) else configuration.get(CHECKPOINTS_DIRECTORY)


def _script_name() -> str:
    stem = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return stem if stem and not stem.startswith("-") else "holdfast-job"
