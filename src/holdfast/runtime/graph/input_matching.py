"""Matching of the inputs of a program with those of a checkpoint: which position each input resumes from. No I/O.

An input is known by its uid. It can consist of several *leaves* (a frame may be a union of two tables); a leaf is known
by the uid and its ordinal, and has a position of its own. Leaves that read the same are the same leaf wherever they are
in the frame. A leaf that now reads something else is rejected, because only the user knows whether its position is
still valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.secret import location_without_credentials

KEEP: Final = "execution.state-recovery.changed-inputs.keep"
ANEW: Final = "execution.state-recovery.changed-inputs.anew"
COLLECTION: Final = "a collection: "
"""Begins the description of the elements of a collection in the program."""

_LISTING: Final = "binaryFile of "
"""The format in which Spark lists files that others read."""


@dataclass(frozen=True)
class InputLeaf:
    """The part of an input that has one position.

    Attributes:
        uid: The input.
        ordinal: Index of the leaf in the input, from 0.
        reads: A description of the source: its format, and the path, topic or table.
        schema: Its columns.
        streaming: Whether it is a stream; otherwise it is read once, as a whole.
        elements: A description of the elements made of these columns: a format of files and the type of their
            elements, or that of records. Empty for nothing; None if an older checkpoint does not tell.
    """

    uid: str
    ordinal: int
    reads: str
    schema: str
    streaming: bool = True
    elements: str | None = None

    @property
    def place(self) -> tuple[str, str, bool]:
        """The identity of what it reads, without the users and passwords that older checkpoints have."""
        return location_without_credentials(self.reads), self.schema, self.streaming

    def reads_as(self, other: InputLeaf) -> bool:
        """Return whether it reads the same as another leaf, as far as both are described."""
        if self.place != other.place:
            return False
        if any((leaf.elements or "").startswith(COLLECTION) for leaf in (self, other)):
            return not (self.elements and other.elements) or self.elements == other.elements  # "" in older checkpoints
        return None in (self.elements, other.elements) or self.elements == other.elements

    def is_edit_of(self, other: InputLeaf) -> bool:
        """Return whether it is the same collection of the program with other elements."""
        return self.place == other.place and all(
            leaf.elements is not None and leaf.elements.startswith(COLLECTION) for leaf in (self, other)
        )

    def __str__(self) -> str:
        stream, place = "a stream of " if self.streaming else "", location_without_credentials(self.reads)
        if self.elements:
            return f"{stream}{place.removeprefix(_LISTING)}, read as {self.elements}"
        return f"{stream}{place} with the columns {self.schema}"

    def to_json(self) -> dict[str, Any]:
        """Return the leaf for a checkpoint; streams and bounded leaves are in separate lists there."""
        elements = {} if self.elements is None else {"elements": self.elements}
        return {"uid": self.uid, "ordinal": self.ordinal, "reads": self.reads, "schema": self.schema, **elements}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, streaming: bool) -> InputLeaf:
        elements = value.get("elements")
        return cls(value["uid"], int(value["ordinal"]), value["reads"], value["schema"], streaming, elements)


@dataclass(frozen=True)
class InputRules:
    """Decisions of the user about inputs that do not match.

    Attributes:
        allow_missing: Whether the position of a removed input is dropped.
        keep: Uids of inputs whose positions are valid for what they read now.
        anew: Uids of inputs that begin at their start if they read something else than before.
    """

    allow_missing: bool = False
    keep: frozenset[str] = frozenset()
    anew: frozenset[str] = frozenset()

    def check(self, uids: Iterable[str]) -> None:
        """Check that each decision names exactly one input.

        Raises:
            ConfigurationError: A uid is unknown, or has two decisions.
        """
        known = sorted(set(uids))
        for key, named in ((KEEP, self.keep), (ANEW, self.anew)):
            unknown = sorted(named - set(known))
            if unknown:
                raise ConfigurationError(
                    f"{key} names {unknown[0]!r}, but no input has that uid; there are {known}: correct the option, "
                    "or remove it"
                )
        both = sorted(self.keep & self.anew)
        if both:
            raise ConfigurationError(f"{KEEP} and {ANEW} both name {both[0]!r}: remove it from one of them")


@dataclass(frozen=True)
class InputMapping:
    """The positions from which the inputs of a program resume.

    Attributes:
        origins: For each leaf of the program the leaf of the checkpoint that it continues, None for its own start.
        dropped: Leaves of the checkpoint that no leaf continues.
        edited: Leaves of the program that are collections with other elements than before.
    """

    origins: Mapping[tuple[str, int, bool], InputLeaf | None]
    dropped: tuple[InputLeaf, ...] = ()
    edited: tuple[InputLeaf, ...] = ()

    def origin(self, leaf: InputLeaf) -> InputLeaf | None:
        """Return the leaf of the checkpoint that a leaf of the program continues."""
        return self.origins[_key(leaf)]


def match_inputs(stored: Sequence[InputLeaf], wanted: Sequence[InputLeaf], rules: InputRules) -> InputMapping:
    """Find for each leaf of a program the leaf of a checkpoint whose position it takes.

    Args:
        stored: The leaves of the checkpoint.
        wanted: The leaves of the program.
        rules: The decisions of the user.

    Raises:
        RestoreError: The checkpoint has inputs that the program does not have, or an input reads something else, and
            the user has made no decision.
    """
    origins: dict[tuple[str, int, bool], InputLeaf | None] = {}
    missing: list[InputLeaf] = []
    dropped: list[InputLeaf] = []
    changed: list[str] = []
    edited: list[InputLeaf] = []
    for uid in sorted({leaf.uid for leaf in (*stored, *wanted)}):
        before, now = _paired(_of(stored, uid), _of(wanted, uid), origins)
        if before and now and uid not in rules.anew and all(map(InputLeaf.is_edit_of, now, before)):
            edited += () if uid in rules.keep else now
            before, now = _kept(before, now, origins)
        if before and now and uid in rules.keep:
            before, now = _kept(before, now, origins)
        if before and now and uid not in rules.anew:
            changed.append(_describe_change(uid, before, now))
            continue
        (dropped if uid in rules.anew and now else missing).extend(before)
        origins.update({_key(leaf): None for leaf in now})
    if changed or (missing and not rules.allow_missing):
        raise _refusal(changed, () if rules.allow_missing else missing, stored, wanted)
    return InputMapping(origins, (*dropped, *missing), tuple(edited))


def _key(leaf: InputLeaf) -> tuple[str, int, bool]:
    return leaf.uid, leaf.ordinal, leaf.streaming


def _of(leaves: Iterable[InputLeaf], uid: str) -> list[InputLeaf]:
    return sorted((leaf for leaf in leaves if leaf.uid == uid), key=lambda leaf: leaf.ordinal)


def _paired(
    before: list[InputLeaf], now: list[InputLeaf], origins: dict[tuple[str, int, bool], InputLeaf | None]
) -> tuple[list[InputLeaf], list[InputLeaf]]:
    """Pair the leaves that read the same, preferably with the same ordinal; return the rest of both sides."""
    for same_place in (True, False):
        for leaf in list(now):
            alike = (o for o in before if o.reads_as(leaf) and (not same_place or o.ordinal == leaf.ordinal))
            found = next(alike, None)
            if found is not None:
                origins[_key(leaf)] = found
                before.remove(found)
                now.remove(leaf)
    return before, now


def _kept(
    before: list[InputLeaf], now: list[InputLeaf], origins: dict[tuple[str, int, bool], InputLeaf | None]
) -> tuple[list[InputLeaf], list[InputLeaf]]:
    """Pair the rest by ordinal, as the user has decided; return the rest of both sides."""
    for leaf in list(now):
        found = next((old for old in before if old.streaming == leaf.streaming), None)
        if found is not None:
            origins[_key(leaf)] = found
            before.remove(found)
            now.remove(leaf)
    return before, now


def _describe_change(uid: str, before: Sequence[InputLeaf], now: Sequence[InputLeaf]) -> str:
    return (
        f"input {uid!r} reads something else: then {' and '.join(map(str, before))}, now {' and '.join(map(str, now))}"
    )


def _refusal(
    changed: Sequence[str], missing: Sequence[InputLeaf], stored: Sequence[InputLeaf], wanted: Sequence[InputLeaf]
) -> RestoreError:
    known = {leaf.uid for leaf in stored}
    gone = sorted({leaf.uid for leaf in missing})
    new = sorted({leaf.uid for leaf in wanted} - known)
    parts = []
    if changed:
        parts.append(
            f"{'; '.join(changed)}. Let it read what it did, or name the uid in {KEEP} if its position is valid for "
            f"what it reads now, or in {ANEW} to begin at its start"
        )
    if gone:
        was = "; ".join(f"{leaf.uid!r} was {leaf}" for leaf in missing)
        fresh = "; ".join(f"{leaf.uid!r} is {leaf}" for leaf in wanted if leaf.uid in new)
        parts.append(
            f"the checkpoint has positions of inputs that this job does not have: {gone} ({was}); new in this job: "
            f"{f'{new} ({fresh})' if new else 'none'}. Give the inputs their old uids, or drop those positions with "
            "-n (execution.state-recovery.ignore-unclaimed-state)"
        )
    return RestoreError(gone, new, ". ".join(parts))
