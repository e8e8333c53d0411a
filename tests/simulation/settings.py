"""How the job of a history is set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Settings:
    """How the job of a history is set.

    Attributes:
        options: Its options.
        max_runs: How many runs a key may have to be looked for in.
        epochs: Epochs of input.
        parallelism: Subtasks of each operator when it starts.
        sinks: How many it has.
        is_elected: Whether processes stand by until an election names them.
        beside: How likely the tasks of a stage run beside each other.
        again: How likely a task has a second attempt.
        idle: How likely it has to wait for the input of an epoch.
        asks: How likely somebody asks something of the job in a moment.
        processes: How many processes are started while the weather is bad.
    """

    options: dict[str, Any]
    max_runs: int
    epochs: int
    parallelism: int
    sinks: int
    is_elected: bool
    beside: float
    again: float
    idle: float
    asks: float
    processes: int
