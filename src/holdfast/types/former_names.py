"""Former names of modules whose classes users' state may name.

Pickled state, pickled watermark generators and serializer snapshots name classes by their module. A module that such a
class may come from is never moved without an entry here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, Final

FORMER_MODULES: Final[Mapping[str, str]] = {
    "holdfast.datastream.connectors.kafka.record.record_serialization": "holdfast.datastream.connectors.kafka.records",
    "holdfast.datastream.formats.text_lines": "holdfast.datastream.formats.input_format",
    "holdfast.kernel.option": "holdfast.kernel.configuration",
    "holdfast.runtime.function.broadcast": "holdfast.runtime.function.user_function",
    "holdfast.runtime.function.two_inputs": "holdfast.runtime.function.user_function",
    "holdfast.runtime.job.status": "holdfast.runtime.job.control",
    "holdfast.runtime.operator.vectorised.batch_function": "holdfast.runtime.operator.batch_function",
    "holdfast.runtime.window.built_in_trigger": "holdfast.runtime.window.trigger",
    "holdfast.runtime.window.time_window_assigner": "holdfast.runtime.window.window_assigner",
    "holdfast.runtime.window.window_function": "holdfast.runtime.window.window",
    "holdfast.state.declaration.api": "holdfast.state.api",
    "holdfast.state.declaration.descriptor": "holdfast.state.descriptor",
    "holdfast.state.declaration.function": "holdfast.state.descriptor",
    "holdfast.state.declaration.ttl_config": "holdfast.state.descriptor",
    "holdfast.types.encoder": "holdfast.types.serialization",
    "holdfast.types.information.abstract_type": "holdfast.types.type_information",
    "holdfast.types.information.atomic_type": "holdfast.types.atomic",
    "holdfast.types.information.changelog_type": "holdfast.types.changelog_type",
    "holdfast.types.information.collection_type": "holdfast.types.collection",
    "holdfast.types.information.decimal_type": "holdfast.types.atomic",
    "holdfast.types.information.opaque_type": "holdfast.types.opaque",
    "holdfast.types.information.record_type": "holdfast.types.composite",
    "holdfast.types.information.sealed_type": "holdfast.types.opaque",
    "holdfast.types.information.struct_type": "holdfast.types.composite",
    "holdfast.types.information.type_information": "holdfast.types.types",
    "holdfast.types.instant": "holdfast.types.atomic",
    "holdfast.types.row_kind": "holdfast.types.row",
    "holdfast.types.serialization_schema": "holdfast.types.serialization",
}
"""Current modules by their former names."""


def current_module(module: str) -> str:
    """Return the present name of a module that durable data names."""
    return FORMER_MODULES.get(module, module)


class DurableUnpickler(pickle.Unpickler):
    """Reads pickles that an older release may have written."""

    def find_class(self, module: str, name: str) -> Any:
        """Import a class from the module in which it lies now."""
        return super().find_class(current_module(module), name)


def loads(data: bytes) -> Any:
    """Unpickle durable data.

    `pickle.loads` is several times faster for small values, and only data of older releases needs more.
    """
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError):
        return DurableUnpickler(io.BytesIO(data)).load()
