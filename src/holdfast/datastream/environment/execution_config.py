"""The part of an environment's settings that PyFlink calls its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.options import AUTO_GENERATE_UIDS, DEFAULT_PARALLELISM, MAX_PARALLELISM

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
