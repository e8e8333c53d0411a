"""Numbers that JSON has not."""

from __future__ import annotations

import math

from holdfast.types import Row
from holdfast.types.serialization import nonfinite_to_text


def test_numbers_that_json_has_not_become_texts_also_in_rows_inside() -> None:
    given = {"row": Row(a=1, b=math.nan), "list": [math.inf, 2.5], "tuple": (-math.inf,)}
    assert nonfinite_to_text(given, str) == {"row": {"a": 1, "b": "nan"}, "list": ["inf", 2.5], "tuple": ["-inf"]}
