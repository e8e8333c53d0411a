"""Who a step of a program is, told by the structure of the program; for steps that were given no uid.

A derived uid has to be the same when the same program runs again, and another one when the program was changed so that
the step might be a different one: then a restore finds state that nobody claims and refuses, instead of giving it to
whoever stands in that place now. So it is made of

- all that is upstream, down to the inputs; a step with a uid of its own stands for what is above it,
- what the step itself is: how it is called, by which columns its stream is keyed, the name of its function's class,
- the steps with state that come after it. Without them, a step put before another one would be taken for that one,
- its number among those of which all this is equal, and how many they are.

What comes after a step and has no state does not count: a sink or a map may be added there.

An input without a uid is its columns and its number among inputs of these columns. What would be another step if they
were defined in another order is told by what they read instead: their positions follow that, and so must state. Not
every step is, because sinks are known to their targets by these uids: those that exist stay as they are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
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
        is_input: Whether its number tells it from other inputs that are the same by themselves.
        is_union: Whether the order of what it reads does not count.
        reads: What tells an input from others that are the same by themselves, wherever it stands; empty for nothing.
    """

    own: tuple[str, ...]
    inputs: tuple[int, ...]
    uid: str | None
    has_state: bool
    is_input: bool = False
    is_union: bool = False
    reads: str = ""


@dataclass(frozen=True)
class Identity:
    """Who a step is.

    Attributes:
        digits: Hexadecimal, different for each.
        by_order: Whether only the order of definition tells it from another one.
    """

    digits: str
    by_order: bool


def uid_of_input(name: str, reads: str, taken: Container[str]) -> str:
    """By what it reads, so that it is found wherever it stands; inputs that read the same are numbered."""
    stem = f"{name}-{hashlib.sha256(reads.encode()).hexdigest()[:8]}"
    numbered = (f"{stem}-{number}" for number in itertools.count(2))
    return next(uid for uid in itertools.chain([stem], numbered) if uid not in taken)


def identities(steps: Sequence[StructuredStep]) -> list[Identity]:
    """Tells each step from all others.

    Args:
        steps: All steps of the program, inputs before those that read them.
    """
    below = _below(steps)
    told, unnumbered = _above(steps, _by_what_they_read(steps)), _above(steps, _by_what_they_read(steps, False))
    above = [*map(_first_if_all_are_equal, zip(*_of_all_orders(steps), strict=True), told)]
    both = [*map(_digest, above, below)]
    alike = Counter(map(_digest, unnumbered, below))
    return [
        Identity(_digest(*place)[:_DIGITS], alike[_digest(up, down)] > 1)
        for place, up, down in zip(_numbered(both), unnumbered, below, strict=True)
    ]


def _first_if_all_are_equal(digests: Sequence[str], otherwise: str) -> str:
    return digests[0] if len(set(digests)) == 1 else otherwise


def _inputs(steps: Sequence[StructuredStep]) -> list[StructuredStep]:
    return [step for step in steps if step.is_input and step.uid is None]


def _of_all_orders(steps: Sequence[StructuredStep]) -> Iterator[list[str]]:
    """What is above each step by the numbers of inputs, first as they are, then as if they were defined otherwise.

    Two orders stand for all: who is the same if two change places and if all move on by one is the same in any order.
    """
    inputs = _inputs(steps)
    numbered = _numbered([_digest(*step.own) for step in inputs])
    yield _above(steps, [_digest(*number) for number in numbered])
    for own in dict.fromkeys(step.own for step in inputs):
        places = [place for place, step in enumerate(inputs) if step.own == own]
        if len({inputs[place].reads for place in places}) > 1:
            for order in ([places[1], places[0], *places[2:]], [*places[1:], places[0]]):
                moved = list(numbered)
                for place, other in zip(places, order, strict=True):
                    moved[place] = numbered[other]
                yield _above(steps, [_digest(*number) for number in moved])


def _by_what_they_read(steps: Sequence[StructuredStep], numbered: bool = True) -> list[str]:
    """Inputs by what they read; those of the same columns that read the same by their number, if that counts."""
    told = _numbered([_digest(*step.own, step.reads) for step in _inputs(steps)])
    return [_digest(*number) if numbered else number[0] for number in told]


def _above(steps: Sequence[StructuredStep], inputs: Iterable[str]) -> list[str]:
    """Of each step, all that is upstream of it and itself; `inputs` are those without a uid."""
    inputs = iter(inputs)
    found: list[str] = []
    for step in steps:
        if step.uid is not None:
            found.append(_digest("uid", step.uid))
        elif step.is_input:
            found.append(next(inputs))
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
