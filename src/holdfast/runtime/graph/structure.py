"""Who a step of a program is, told by the structure of the program; for steps that were given no uid.

A derived uid has to be the same when the same program runs again, and another one when the program was changed so that
the step might be a different one: then a restore finds state that nobody claims and refuses, instead of giving it to
whoever stands in that place now. So it is made of

- all that is upstream, down to the inputs; a step with a uid of its own stands for what is above it,
- what the step itself is: how it is called, by which columns its stream is keyed, the name of its function's class,
- the steps with state that come after it. Without them, a step put before another one would be taken for that one,
- its number among those of which all this is equal, and how many they are.

What comes after a step and has no state does not count: a sink or a map may be added there.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = 10


@dataclass(frozen=True)
class StructuredStep:
    """A step as far as it counts.

    Attributes:
        own: What the step itself is.
        inputs: Places in the program of the steps that it reads.
        uid: Given by the program; None if it is to be derived.
        has_state: Whether the steps above it are told by it.
        is_input: Whether nothing but its number tells it from other inputs.
        is_union: Whether the order of what it reads does not count.
    """

    own: tuple[str, ...]
    inputs: tuple[int, ...]
    uid: str | None
    has_state: bool
    is_input: bool = False
    is_union: bool = False


def identities(steps: Sequence[StructuredStep]) -> list[str]:
    """Return hexadecimal digits for each step, different for each.

    Args:
        steps: All steps of the program, inputs before those that read them.
    """
    above = _above(steps)
    below = _below(steps)
    both = [_digest(up, down) for up, down in zip(above, below, strict=True)]
    return [_digest(*place)[:_DIGITS] for place in _numbered(both)]


def _above(steps: Sequence[StructuredStep]) -> list[str]:
    inputs = iter(_numbered([_digest(*step.own) for step in steps if step.is_input and step.uid is None]))
    found: list[str] = []
    for step in steps:
        if step.uid is not None:
            found.append(_digest("uid", step.uid))
        elif step.is_input:
            found.append(_digest(*next(inputs)))
        else:
            read = [found[place] for place in step.inputs]
            found.append(_digest(*step.own, *(sorted(read) if step.is_union else read)))
    return found


def _below(steps: Sequence[StructuredStep]) -> list[str]:
    """Of each step, the steps with state that read it, at once or through steps without."""
    reached: list[set[str]] = [set() for _ in steps]
    found: list[str] = [""] * len(steps)
    for place in reversed(range(len(steps))):
        step = steps[place]
        found[place] = _digest(*sorted(reached[place]))
        if step.has_state:
            told = {_digest(*(step.own if step.uid is None else ("uid", step.uid)), found[place])}
        else:
            told = reached[place]
        for above in step.inputs:
            reached[above] |= told
    return found


def _numbered(texts: Sequence[str]) -> list[tuple[Any, ...]]:
    """Each text with its number among the equal ones, and how many they are."""
    total, seen = Counter(texts), Counter[str]()
    numbered = []
    for text in texts:
        seen[text] += 1
        numbered.append((text, seen[text], total[text]))
    return numbered


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
