"""What the footer of a run says of a state, checked before anybody believes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED, require_shallow
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.evolution import forms_of


def require_schema(schema: Mapping[str, Any], name: str, path: str) -> None:
    """Make sure that a segment's schema has the fields that every state has; what its types are is asked later.

    Args:
        schema: As a footer has it.
        name: Of the state.
        path: Of the run.

    Raises:
        CorruptFileError: It has not.
    """
    try:
        require_shallow(schema)
        kind, queryable = StateKind(schema["kind"]), schema.get("queryable")
        if (kind is StateKind.MAP) != (schema["map_key"] is not None) or type(queryable) not in (str, type(None)):
            raise ValueError(
                f"{kind.value} state with map keys {schema['map_key']!r:.80}, asked for as {queryable!r:.80}"
            )
        for form in forms_of(schema):
            if type(form.ttl) is not bool or type(form.since) not in (int, type(None)):
                raise ValueError(f"its time to live is {form.ttl!r:.40} since {form.since!r:.40}")
        schema["namespace"]
    except MALFORMED as error:
        raise CorruptFileError(
            path, None, f"what its footer says of state {name!r:.80} is no state: {error!r:.300}."
        ) from error
