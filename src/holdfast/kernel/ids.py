"""Identifiers: 32 hexadecimal digits in names of directories, ConfigMaps and documents."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass, field
from typing import Self

from holdfast.errors import ConfigurationError

# The UUIDv5 namespace of job names. A change would move every job to another directory.
_JOB_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://holdfast.invalid/job")
_HEX_DIGITS = 32


@dataclass(frozen=True, order=True, slots=True)
class AbstractID:
    """128 bits, written as 32 lower-case hexadecimal digits; random by default."""

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
            ConfigurationError: The text is not 32 hexadecimal digits.
        """
        return cls(text.lower())

    @classmethod
    def from_hex_string(cls, text: str) -> Self:
        """Parse 32 hexadecimal digits; Flink's name for `from_hex`."""
        return cls.from_hex(text)

    @classmethod
    def generate(cls) -> Self:
        """Draw a new random id."""
        return cls()

    def to_hex(self) -> str:
        """Return the 32 hexadecimal digits."""
        return self.hex

    def to_hex_string(self) -> str:
        """Return the 32 hexadecimal digits; Flink's name for `to_hex`."""
        return self.hex

    def __str__(self) -> str:
        return self.hex


class JobID(AbstractID):
    """The id of a job. It names the job's directory and the documents of its leader."""

    __slots__ = ()

    @classmethod
    def from_name(cls, name: str) -> JobID:
        """Derive the id from the job's name, the same in every process (UUIDv5).

        Raises:
            ConfigurationError: The name has characters that UTF-8 cannot encode.
        """
        try:
            return cls(uuid.uuid5(_JOB_NAMESPACE, name).hex)
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{name!r:.80} cannot be the name of a job: {error}.") from error


class JobVertexID(AbstractID):
    """The id of a vertex of the execution plan: the operators that run in one task."""

    __slots__ = ()


class OperatorID(AbstractID):
    """The id of an operator, derived from its uid."""

    __slots__ = ()

    @classmethod
    def from_uid(cls, uid: str) -> OperatorID:
        """Derive the id from a user's uid, the same in every process."""
        return cls(hashlib.sha256(b"operator\0" + uid.encode()).hexdigest()[:_HEX_DIGITS])


def new_nonce() -> str:
    """Return 12 random hexadecimal digits that identify an attempt or a writer."""
    return secrets.token_hex(6)
