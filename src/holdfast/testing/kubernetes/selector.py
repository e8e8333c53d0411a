"""Label and field selectors of the API server double."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.testing.kubernetes.status import bad_request

Json = dict[str, Any]
Requirement = Callable[[dict[str, str]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_FIELDS = ("metadata.name", "metadata.namespace")


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_requirement(part: str) -> Requirement:
    found = _SET.match(part)
    if found:
        key, operator = found[1], found[2]
        values = {value.strip() for value in found[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for operator in ("!=", "==", "="):
        left, sign, right = part.partition(operator)
        if sign:
            left, right = left.strip(), right.strip()
            if operator == "!=":
                return lambda labels: labels.get(left) != right
            return lambda labels: labels.get(left) == right
    if re.search(r"[\s(){}<>]", part):
        raise bad_request(f'unable to parse requirement: found "{part}"')
    if part.startswith("!"):
        return lambda labels: part[1:] not in labels
    return lambda labels: part in labels


class Selector:
    """Which objects a list or a watch is about.

    Raises:
        StatusError: 400 for a selector that cannot be read or a field that cannot be selected by.
    """

    def __init__(self, labels: str = "", fields: str = "") -> None:
        self._labels = [_label_requirement(part) for part in _split(labels)]
        self._fields: list[tuple[str, bool, str]] = []
        for part in _split(fields):
            left, sign, right = next(
                (found for found in (part.partition(operator) for operator in ("!=", "==", "=")) if found[1]),
                (part, "", ""),
            )
            if not sign:
                raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
            if left not in _FIELDS:
                raise bad_request(f"field label not supported: {left}")
            self._fields.append((left.removeprefix("metadata."), sign != "!=", right))

    @property
    def empty(self) -> bool:
        """Whether it lets everything pass."""
        return not self._labels and not self._fields

    @property
    def name(self) -> str:
        """The one name that it selects, or nothing: such a request is authorized as one about that name."""
        return next((value for field, equal, value in self._fields if field == "name" and equal), "")

    def matches(self, value: Json | None) -> bool:
        """Whether the object is selected; no object never is."""
        if value is None:
            return False
        metadata = value["metadata"]
        labels = metadata.get("labels", {})
        return all(wanted(labels) for wanted in self._labels) and all(
            (metadata.get(field, "") == text) == equal for field, equal, text in self._fields
        )
