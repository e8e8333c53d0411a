"""The part of an environment's settings that PyFlink calls its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.datastream.no_effect import accept_without_effect
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.options import AUTO_GENERATE_UIDS, DEFAULT_PARALLELISM, LATENCY_INTERVAL, MAX_PARALLELISM

_PARAMETERS = "pipeline.global-job-parameters."


@accept_without_effect
class ExecutionConfig:
    """Settings of the jobs of an environment. Some set options; the others are kept without effect (`no_effect.py`).

        >>> env.get_config().set_parallelism(2).enable_object_reuse().get_parallelism()
        2

    Args:
        program: The options that the program sets.
        in_force: Returns the options in force: those, and over them those of the command line.
    """

    PARALLELISM_DEFAULT: ClassVar = -1
    PARALLELISM_UNKNOWN: ClassVar = -2

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # methods made by `accept_without_effect`

    def __init__(self, program: Configuration, in_force: Callable[[], Configuration]) -> None:
        self._program = program
        self._in_force = in_force

    def get_parallelism(self) -> int | None:
        """Return the subtasks of keyed operators that set none of their own; None for Spark's default."""
        return self._in_force().get(DEFAULT_PARALLELISM)

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the subtasks of keyed operators that set none of their own."""
        self._program.set(DEFAULT_PARALLELISM, parallelism)
        return self

    def get_max_parallelism(self) -> int | None:
        """Return the key groups of keyed operators that set none of their own; None if derived."""
        return self._in_force().get(MAX_PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the key groups of keyed operators that set none of their own."""
        self._program.set(MAX_PARALLELISM, max_parallelism)
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Return whether operators without a uid get one."""
        return self._in_force().get(AUTO_GENERATE_UIDS)

    def enable_auto_generated_uids(self) -> Self:
        """Derive the uids of operators that have none."""
        self._program.set(AUTO_GENERATE_UIDS, True)
        return self

    def disable_auto_generated_uids(self) -> Self:
        """Make a missing uid an error."""
        self._program.set(AUTO_GENERATE_UIDS, False)
        return self

    def get_latency_tracking_interval(self) -> int:
        """Return the milliseconds between two latency markers of a real-time job; 0 for none."""
        return self._in_force().get(LATENCY_INTERVAL)

    def set_latency_tracking_interval(self, interval: int) -> Self:
        """Set the milliseconds between two latency markers of a real-time job; 0 for none."""
        self._program.set(LATENCY_INTERVAL, interval)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """Return the parameters that functions read by `RuntimeContext.get_job_parameter`."""
        given = self._in_force().to_dict()
        return {key.removeprefix(_PARAMETERS): str(given[key]) for key in given if key.startswith(_PARAMETERS)}

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> Self:
        """Set the parameters that functions read by `RuntimeContext.get_job_parameter`."""
        for name, value in global_job_parameters_dict.items():
            self._program.set_string(f"{_PARAMETERS}{name}", str(value))
        return self

    def disable_generic_types(self) -> Self:
        """Raise an error: `output_type` is declared at each operator.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "disable_generic_types() has no counterpart: declare output_type at each operator whose elements are not "
            "to be pickled; sinks that write columns refuse those that are."
        )
