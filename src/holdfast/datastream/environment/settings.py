"""What a PyFlink program says to its environment beside its streams: put into options, handed to Spark, or refused."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from holdfast.checkpoint.config.checkpoint_config import CheckpointConfig
from holdfast.checkpoint.config.options import SAVEPOINT_DIRECTORY, CheckpointingMode
from holdfast.datastream.environment.execution_config import ExecutionConfig
from holdfast.datastream.environment.python_requirements import give_directory, give_requirements
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.graph.stream_graph import Node, SourceNode, StreamGraph
from holdfast.runtime.job.options import DEFAULT_PARALLELISM, RUNTIME_MODE, RuntimeExecutionMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class EnvironmentSettings:
    """The settings of an environment that PyFlink has and that need no code of their own elsewhere."""

    _program: Configuration
    _spark: SparkSession | None
    _checkpoint_config: CheckpointConfig
    _execution_config: ExecutionConfig

    @property
    @abstractmethod
    def spark(self) -> SparkSession:
        """The session."""

    @abstractmethod
    def get_configuration(self) -> Configuration:
        """The options in force."""

    @abstractmethod
    def get_stream_graph(self) -> StreamGraph:
        """The program as it was defined so far."""

    def get_config(self) -> ExecutionConfig:
        """The settings that PyFlink calls the config; changes to it are changes to the program's options."""
        return self._execution_config

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Says whether reductions emit the result after each element, or once a key, at the end of the input.

        Call it before streams are defined.

        Args:
            execution_mode: STREAMING, the default; BATCH, for bounded inputs only; AUTOMATIC is BATCH where all inputs
                of a stream are bounded.

        Raises:
            ConfigurationError: It is no such mode.
        """
        self._program.set(RUNTIME_MODE, execution_mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; 0 for a checkpoint in every epoch."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly once, unless it was set otherwise."""
        return self._checkpoint_config.get_checkpointing_mode()

    get_checkpointing_consistency_mode = get_checkpointing_mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """False: a shuffle is the barrier, and none has to be aligned."""
        return self._checkpoint_config.is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """False: a shuffle is the barrier, and none has to be aligned."""
        return self._checkpoint_config.is_force_unaligned_checkpoints()

    def enable_changelog_state_backend(self, enabled: bool) -> Self:
        """Accepted: every epoch's changes are durable as run files, which is what a changelog is for."""
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """None: there is nothing to be enabled."""
        return None

    def set_default_savepoint_directory(self, directory: str) -> Self:
        """Sets where savepoints are made that name no directory."""
        self._program.set(SAVEPOINT_DIRECTORY, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Where savepoints are made that name no directory."""
        return self.get_configuration().get(SAVEPOINT_DIRECTORY)

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Accepted: elements cross an exchange when the epoch's stage has ended, and no buffer waits for a timeout."""
        return self

    def get_buffer_timeout(self) -> int:
        """-1: no buffer waits for a timeout."""
        return -1

    def disable_operator_chaining(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def is_chaining_enabled(self) -> bool:
        """True."""
        return True

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """True."""
        return True

    def register_slot_sharing_group(self, slot_sharing_group: Any) -> Self:
        """Accepted: there are no slots; resources are those of Spark's executors."""
        return self

    def get_default_local_parallelism(self) -> int | None:
        """The parallelism that was set; None for Spark's default, which is that of the session's master."""
        return self._program.get(DEFAULT_PARALLELISM)

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Sets the parallelism: there is one, wherever the session runs."""
        self._program.set(DEFAULT_PARALLELISM, parallelism)

    def get_execution_plan(self) -> str:
        """The steps of the program so far, as JSON: `id`, `type`, and the ids that each reads."""
        nodes = [
            {"id": node.identity, "type": node.name, "predecessors": [{"id": other.identity} for other in node.inputs]}
            for node in self.get_stream_graph().nodes
        ]
        return json.dumps({"nodes": nodes})

    def add_python_file(self, file_path: str) -> None:
        """Puts a module, a zipped package, or what is in a directory on the path of all workers.

        A file goes by `SparkContext.addPyFile`, a directory is packed, as it is now, and goes by `addArchive`.

        Raises:
            ConfigurationError: It is a directory, and this Spark has no way to give it to workers.
        """
        context = self.spark.sparkContext
        if Path(file_path).is_dir():
            give_directory(context, file_path)
        else:
            context.addPyFile(file_path)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpacks an archive beside all workers, by `SparkContext.addArchive`.

        Functions find it by `pyspark.SparkFiles.get(target_dir)`, or by the archive's own name without one.
        """
        self.spark.sparkContext.addArchive(f"{archive_path}#{target_dir}" if target_dir else archive_path)

    def set_python_executable(self, python_exec: str) -> None:
        """Sets the Python of the workers, as `spark.pyspark.python`.

        Raises:
            ConfigurationError: The session exists already.
        """
        self._of_session("set_python_executable()", "spark.pyspark.python", python_exec)

    def add_jars(self, *jars_path: str) -> None:
        """Adds jars for the sources and sinks of Spark, as `spark.jars`.

        Raises:
            ConfigurationError: The session exists already.
        """
        before = self._program.get_string("spark.jars", "")
        self._of_session("add_jars()", "spark.jars", ",".join([*filter(None, [before]), *jars_path]))

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Installs packages beside the driver and gives them to all workers, by `SparkContext.addArchive`.

        The driver's Python and platform must be those of the workers; the program itself does not see the packages.

        Args:
            requirements_file_path: A file as pip takes it.
            requirements_cache_dir: A directory with the packages; no network is asked then.

        Raises:
            ConfigurationError: pip cannot install them.
        """
        give_requirements(self.spark.sparkContext, requirements_file_path, requirements_cache_dir)

    def add_classpaths(self, *classpaths: str) -> NoReturn:
        """Refused: jars are given to Spark.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(f"add_classpaths{classpaths!r}: jars are for Spark here: call add_jars().")

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> NoReturn:
        """Refused: Spark has files of its own for that.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"register_cached_file({file_path!r}): call env.spark.sparkContext.addFile(), and SparkFiles.get() in "
            "tasks."
        )

    def add_source(self, source_func: Any, source_name: str = "Custom Source", type_info: Any = None) -> NoReturn:
        """Refused: a `SourceFunction` is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "add_source() takes a class of Java: use from_source() with a Source of holdfast.datastream.connectors, or "
            "from_dataframe() with any frame that Spark reads."
        )

    def create_input(self, input_format: Any, type_info: Any = None) -> NoReturn:
        """Refused: an `InputFormat` is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "create_input() takes a class of Java: use from_source() with a Source of holdfast.datastream.connectors, "
            "or from_dataframe() with any frame that Spark reads."
        )

    def close(self) -> None:
        """Does nothing: the session is Spark's, and a job is ended by its `JobClient`."""

    def _of_session(self, what: str, key: str, value: str) -> None:
        if self._spark is not None:
            raise ConfigurationError(
                f"{what} comes too late: the Spark session exists. Set the option {key} where the session is made, or "
                "call this before anything else of the environment."
            )
        self._program.set_string(key, value)

    def _emits_final_values(self, node: Node) -> bool:
        """Whether reductions of a step's elements emit once a key, at the end."""
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
        """Refuses a program in batch mode whose input does not end.

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
