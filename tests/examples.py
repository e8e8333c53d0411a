"""How many examples Hypothesis tries: all of them in `make soak`, otherwise a third."""

from __future__ import annotations

import os
from typing import Final

TRIES_ALL: Final = os.environ.get("EXAMPLES") == "all"
_FEWEST: Final = 8


def examples(many: int) -> int:
    """The number for `settings(max_examples=...)`, given the one of `make soak`."""
    return many if TRIES_ALL else max(min(many, _FEWEST), many // 3)
