"""Which states a `StatefulProcessor` declares, found without a job."""

from __future__ import annotations

import copy
from typing import Any, cast

from holdfast.errors import ConfigurationError
from holdfast.spark.stateful_processor.handle import StatefulProcessorHandle, TimeMode
from holdfast.spark.stateful_processor.processor import checked_processor
from holdfast.state.declaration.descriptor import StateDescriptor


class _Declarations:
    """Takes the place of a runtime context: remembers what it is asked for."""

    def __init__(self) -> None:
        self.found: dict[str, StateDescriptor[Any]] = {}

    def get_state(self, descriptor: StateDescriptor[Any]) -> None:
        self.found[descriptor.name] = descriptor

    get_list_state = get_state
    get_map_state = get_state


def declared_states(processor: Any, time_mode: TimeMode) -> dict[str, StateDescriptor[Any]]:
    """The descriptors of the states that a copy of a processor asks for in `init`, by name.

    Raises:
        ConfigurationError: It is no processor, or its `init` fails.
    """
    asked = _Declarations()
    handle = StatefulProcessorHandle(cast("Any", asked), time_mode)
    try:
        copy.copy(checked_processor(processor)).init(handle)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"init() of {type(processor).__name__} failed: {error!r:.300}") from error
    return asked.found
