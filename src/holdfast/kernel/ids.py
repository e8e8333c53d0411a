"""Identifiers: 32 hexadecimal digits in names of directories, ConfigMaps and documents."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass, field
from typing import Self

from holdfast.errors import ConfigurationError

# UUIDv5 namespace of job names. Changing it would move every job to another directory.
_JOB_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://holdfast.invalid/job")
_HEX_DIGITS = 32


@dataclass(frozen=True, order=True, slots=True)
class AbstractID:
    """128 bits, written as 32 lower-case hexadecimal digits; a new random one if none are given."""

    hex: str = field(default_factory=lambda: secrets.token_hex(_HEX_DIGITS // 2))

    def __post_init__(self) -> None:
        if len(self.hex) != _HEX_DIGITS or set(self.hex) - set("0123456789abcdef"):
            raise ConfigurationError(
                f"{type(self).__name__} must be 32 lower-case hexadecimal digits, not {self.hex!r:.80}."
            )

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """Parse 32 hexadecimal digits of either case.

        Raises:
            ConfigurationError: The text is something else.
        """
        return cls(text.lower())

    @classmethod
    def from_hex_string(cls, text: str) -> Self:
        """Parse 32 hexadecimal digits; Flink's name of `from_hex`."""
        return cls.from_hex(text)

    @classmethod
    def generate(cls) -> Self:
        """Draw a new random id."""
        return cls()

    def to_hex(self) -> str:
        """Return the 32 hexadecimal digits."""
        return self.hex

    def to_hex_string(self) -> str:
        """Return the 32 hexadecimal digits; Flink's name of `to_hex`."""
        return self.hex

    def __str__(self) -> str:
        return self.hex


class JobID(AbstractID):
    """A job; it names the job's directory and everything that leads it."""

    __slots__ = ()

    @classmethod
    def from_name(cls, name: str) -> JobID:
        """Derive the id from the job's name, the same in every process (UUIDv5).

        Raises:
            ConfigurationError: The name is no text that can be written.
        """
        try:
            return cls(uuid.uuid5(_JOB_NAMESPACE, name).hex)
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{name!r:.80} cannot be the name of a job: {error}.") from error


class JobVertexID(AbstractID):
    """A vertex of the execution plan: the operators that run in one task."""

    __slots__ = ()


class OperatorID(AbstractID):
    """An operator, derived from its uid."""

    __slots__ = ()

    @classmethod
    def from_uid(cls, uid: str) -> OperatorID:
        """Derive the id from a user's uid, the same in every process."""
        return cls(hashlib.sha256(b"operator\0" + uid.encode()).hexdigest()[:_HEX_DIGITS])


def new_nonce() -> str:
    """Draw 12 random hexadecimal digits that tell attempts and writers apart."""
    return secrets.token_hex(6)
