"""When Spark starts a batch: `execution.trigger`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.kernel.option import parse_duration


@dataclass(frozen=True)
class EpochTrigger:
    """A parsed trigger.

    Attributes:
        ends: Whether the query ends when what is there now has been processed.
        interval: Milliseconds between starts of batches; 0 means as soon as possible.
    """

    ends: bool = False
    interval: int = 0

    @classmethod
    def parse(cls, text: str) -> EpochTrigger:
        """Reads `continuous`, `available-now` or an interval such as `10 s`.

        Raises:
            ConfigurationError: It is none of these.
        """
        word = text.strip().lower()
        if word == "continuous":
            return cls()
        if word in ("available-now", "availablenow"):
            return cls(ends=True)
        try:
            return cls(interval=parse_duration(text))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"execution.trigger {text!r} is neither 'continuous', 'available-now' nor an interval such as '10 s'"
            ) from error

    def arguments(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        if self.ends:
            return {"availableNow": True}
        return {"processingTime": f"{self.interval} milliseconds"}
