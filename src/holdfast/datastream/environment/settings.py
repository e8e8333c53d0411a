"""What a PyFlink program says to its environment beside its streams: put into options, handed to Spark, or refused."""

from __future__ import annotations

import atexit
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.options import SAVEPOINT_DIRECTORY, CheckpointingMode
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.graph.stream_graph import Node, SourceNode, StreamGraph
from holdfast.runtime.job.options import (
    AUTO_GENERATE_UIDS,
    DEFAULT_PARALLELISM,
    MAX_PARALLELISM,
    RUNTIME_MODE,
    RuntimeExecutionMode,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The part of an environment's settings that PyFlink calls its config.

_PARAMETERS = "pipeline.global-job-parameters."


class ExecutionConfig:
    """Settings of the jobs of an environment: what acts here is put into its options, the rest is only kept.

    What is only kept says how Java serializes or how a task is cancelled. Python objects are pickled or have columns,
    and Spark ends tasks.

    Args:
        program: What the program has set, which is added to.
        in_force: Returns what holds: that, and what the command line says.
    """

    PARALLELISM_DEFAULT: ClassVar = -1
    PARALLELISM_UNKNOWN: ClassVar = -2

    def __init__(self, program: Configuration, in_force: Callable[[], Configuration]) -> None:
        self._program = program
        self._in_force = in_force
        self._kept: dict[str, Any] = {}

    def get_parallelism(self) -> int | None:
        """Subtasks of keyed operators that set none of their own; None for Spark's default parallelism."""
        return self._in_force().get(DEFAULT_PARALLELISM)

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets that number."""
        self._program.set(DEFAULT_PARALLELISM, parallelism)
        return self

    def get_max_parallelism(self) -> int | None:
        """Key groups of keyed operators that set none of their own; None if it is derived."""
        return self._in_force().get(MAX_PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Sets that number."""
        self._program.set(MAX_PARALLELISM, max_parallelism)
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Whether operators without a uid get one."""
        return self._in_force().get(AUTO_GENERATE_UIDS)

    def enable_auto_generated_uids(self) -> Self:
        """Derives the uids of operators that have none."""
        self._program.set(AUTO_GENERATE_UIDS, True)
        return self

    def disable_auto_generated_uids(self) -> Self:
        """Makes a missing uid an error."""
        self._program.set(AUTO_GENERATE_UIDS, False)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """What functions read by `RuntimeContext.get_job_parameter`."""
        given = self._in_force().to_dict()
        return {key.removeprefix(_PARAMETERS): str(given[key]) for key in given if key.startswith(_PARAMETERS)}

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> Self:
        """Sets what functions read by `RuntimeContext.get_job_parameter`."""
        for name, value in global_job_parameters_dict.items():
            self._program.set_string(f"{_PARAMETERS}{name}", str(value))
        return self

    def get_auto_watermark_interval(self) -> int:
        """What was set; without effect, because watermarks advance at the end of each epoch."""
        return int(self._kept.get("auto-watermark-interval", 200))

    def set_auto_watermark_interval(self, interval: int) -> Self:
        """Kept, without effect: watermarks advance at the end of each epoch."""
        return self._keep("auto-watermark-interval", interval)

    def get_latency_tracking_interval(self) -> int:
        """What was set; without effect, because progress tells the time of each epoch."""
        return int(self._kept.get("latency-tracking-interval", 0))

    def set_latency_tracking_interval(self, interval: int) -> Self:
        """Kept, without effect: progress tells the time of each epoch."""
        return self._keep("latency-tracking-interval", interval)

    def get_task_cancellation_interval(self) -> int:
        """What was set; without effect, because Spark ends tasks."""
        return int(self._kept.get("task-cancellation-interval", 30_000))

    def set_task_cancellation_interval(self, interval: int) -> Self:
        """Kept, without effect: Spark ends tasks."""
        return self._keep("task-cancellation-interval", interval)

    def get_task_cancellation_timeout(self) -> int:
        """What was set; without effect, because Spark ends tasks."""
        return int(self._kept.get("task-cancellation-timeout", 180_000))

    def set_task_cancellation_timeout(self, timeout: int) -> Self:
        """Kept, without effect: Spark ends tasks."""
        return self._keep("task-cancellation-timeout", timeout)

    def is_object_reuse_enabled(self) -> bool:
        """What was set; functions that are chained hand on the same objects in any case."""
        return bool(self._kept.get("object-reuse", False))

    def enable_object_reuse(self) -> Self:
        """Kept: functions that are chained hand on the same objects in any case."""
        return self._keep("object-reuse", True)

    def disable_object_reuse(self) -> Self:
        """Kept, without effect: functions that are chained hand on the same objects in any case."""
        return self._keep("object-reuse", False)

    def is_closure_cleaner_enabled(self) -> bool:
        """What was set; functions are pickled with what they close over."""
        return bool(self._kept.get("closure-cleaner", True))

    def enable_closure_cleaner(self) -> Self:
        """Kept, without effect: functions are pickled with what they close over."""
        return self._keep("closure-cleaner", True)

    def disable_closure_cleaner(self) -> Self:
        """Kept, without effect: functions are pickled with what they close over."""
        return self._keep("closure-cleaner", False)

    def has_generic_types_disabled(self) -> bool:
        """Always false: elements without a declared type are pickled."""
        return False

    def enable_generic_types(self) -> Self:
        """As it is: elements without a declared type are pickled."""
        return self

    def disable_generic_types(self) -> Self:
        """Refused.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "disable_generic_types() has no counterpart: declare output_type at each operator whose elements are not "
            "to be pickled; sinks that write columns refuse those that are."
        )

    def is_force_kryo_enabled(self) -> bool:
        """What was set; without effect, because no element is an object of Java."""
        return bool(self._kept.get("force-kryo", False))

    def enable_force_kryo(self) -> Self:
        """Kept, without effect: no element is an object of Java."""
        return self._keep("force-kryo", True)

    def disable_force_kryo(self) -> Self:
        """Kept, without effect: no element is an object of Java."""
        return self._keep("force-kryo", False)

    def is_force_avro_enabled(self) -> bool:
        """What was set; without effect, because no element is an object of Java."""
        return bool(self._kept.get("force-avro", False))

    def enable_force_avro(self) -> Self:
        """Kept, without effect: no element is an object of Java."""
        return self._keep("force-avro", True)

    def disable_force_avro(self) -> Self:
        """Kept, without effect: no element is an object of Java."""
        return self._keep("force-avro", False)

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """None are registered: no element is an object of Java."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """None are registered: no element is an object of Java."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """None are registered: no element is an object of Java."""
        return []

    def is_use_snapshot_compression(self) -> bool:
        """What was set; without effect, because runs are written as Arrow's columns."""
        return bool(self._kept.get("snapshot-compression", False))

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> Self:
        """Kept, without effect: runs are written as Arrow's columns."""
        return self._keep("snapshot-compression", use_snapshot_compression)

    def _keep(self, name: str, value: Any) -> Self:
        self._kept[name] = value
        return self


# What a program asks for the path of its workers: packed once beside the driver, unpacked beside each worker.

_TOLD: Final = 1000
_numbers = itertools.count()


def give_requirements(context: Any, requirements: str, cache: str | None) -> None:
    """Install what a file of requirements names, and put it on the path of all Python workers of a Spark context.

    It is an archive that Spark unpacks, not a zip that Python reads, because compiled modules cannot be in one.

    Args:
        context: A `SparkContext`.
        requirements: Path of a file as pip takes it.
        cache: A directory with the packages, in which case no network is asked; None for pip's own ways.

    Raises:
        ConfigurationError: There is no such file, pip cannot install it, or this Spark has no way to do so.
    """
    if not Path(requirements).is_file():
        raise ConfigurationError(f"set_python_requirements(): there is no file {requirements!r}.")
    place = _place(context, "set_python_requirements()")
    _install(requirements, cache, place / "installed")
    _give(context, place, place / "installed")


def give_directory(context: Any, directory: str) -> None:
    """Put the modules and packages in a directory, as they are now, on the path of all Python workers.

    Args:
        context: A `SparkContext`.
        directory: Its path.

    Raises:
        ConfigurationError: This Spark has no way to do so.
    """
    _give(context, _place(context, "add_python_file()"), Path(directory))


def _place(context: Any, who: str) -> Path:
    """Return a new directory for what is given to workers."""
    if not isinstance(getattr(context, "_python_includes", None), list):
        raise ConfigurationError(
            f"{who}: this Spark does not say what is on the path of its workers: pack an environment (venv-pack, "
            "conda-pack) and name it in the option spark.archives."
        )
    place = Path(tempfile.mkdtemp(prefix="holdfast-python-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)  # executors that come later fetch the archive, too
    return place


def _give(context: Any, place: Path, directory: Path) -> None:
    name = f"holdfast-python-{next(_numbers)}"
    archive = shutil.make_archive(str(place / name), "zip", directory)
    context.addArchive(f"{archive}#{name}")
    context._python_includes.append(name)


def _install(requirements: str, cache: str | None, target: Path) -> None:
    offline = [] if cache is None else ["--no-index", "--find-links", cache]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *offline, "-r", requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"set_python_requirements({requirements!r}): pip could not install it: {done.stderr.strip()[-_TOLD:]}"
        )
    target.mkdir(exist_ok=True)  # pip makes no directory for a file that names nothing


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
