"""Options are shipped and shown as text, and the text says what the value said."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any

import pytest

import holdfast.datastream  # noqa: F401 - the options of all its modules
from holdfast.common import Duration, Time
from holdfast.kernel.configuration import DurationType, all_options, as_text, convert

VALUES: dict[Any, list[Any]] = {
    DurationType: [0, 1500, "10 s", "250", timedelta(days=400, milliseconds=1), Time.seconds(3), Duration.of_hours(2)],
    bool: [True, False, "TRUE"],
    int: [0, -3, "17"],
    float: [0.1, 1e300, 2, "3.5"],
    list: [[], ["one"], ["a,b"], ["a", "b,c"], ("x", "y"), "x;y", "x,y"],
    str: ["", "text; with, marks", 7, True],
}


@pytest.mark.parametrize("key", sorted(all_options()))
def test_an_option_reads_the_same_from_its_text(key: str) -> None:
    option = all_options()[key]
    is_enum = isinstance(option.type, type) and issubclass(option.type, Enum)
    values = list(option.type) if is_enum else VALUES.get(option.type, [])
    for value in [*values, *([] if option.default is None else [option.default])]:
        text = as_text(value)
        assert isinstance(text, str)
        assert convert(option.type, text) == convert(option.type, value), value
