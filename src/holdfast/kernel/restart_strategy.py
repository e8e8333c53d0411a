"""Restart strategies: whether a failed job restarts, and after what delay.

The job master calls `RestartStrategy.notify_failure` at each failure, then `can_restart` and `get_backoff_time`. The
counters are in the job master, so they restart after a takeover. Times are milliseconds of the injected clock's
monotonic time: a jump of the wall clock changes nothing.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import deque
from typing import Final

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import ConfigOption, Configuration, DurationType

UNLIMITED: Final = (1 << 31) - 1

RESTART_STRATEGY: Final[ConfigOption[str | None]] = ConfigOption(
    "restart-strategy.type",
    str,
    None,
    "The restart strategy after a failure: none (or off, disable), fixed-delay, failure-rate or exponential-delay. "
    "Not set, it is exponential-delay, because every job has checkpoints.",
    deprecated_keys=("restart-strategy",),
)
FIXED_DELAY_ATTEMPTS: Final = ConfigOption(
    "restart-strategy.fixed-delay.attempts", int, 1, "Number of restarts before the job fails."
)
FIXED_DELAY: Final = ConfigOption("restart-strategy.fixed-delay.delay", DurationType, 1000, "Delay before a restart.")
FAILURE_RATE_MAX: Final = ConfigOption(
    "restart-strategy.failure-rate.max-failures-per-interval",
    int,
    1,
    "Number of failures within the interval that the job survives; one more fails it.",
)
FAILURE_RATE_INTERVAL: Final = ConfigOption(
    "restart-strategy.failure-rate.failure-rate-interval",
    DurationType,
    60_000,
    "Interval in which failures are counted.",
)
FAILURE_RATE_DELAY: Final = ConfigOption(
    "restart-strategy.failure-rate.delay", DurationType, 1000, "Delay before a restart."
)
EXPONENTIAL_INITIAL: Final = ConfigOption(
    "restart-strategy.exponential-delay.initial-backoff", DurationType, 1000, "Delay before the first restart."
)
EXPONENTIAL_MAX: Final = ConfigOption(
    "restart-strategy.exponential-delay.max-backoff", DurationType, 60_000, "Longest delay before a restart."
)
EXPONENTIAL_MULTIPLIER: Final = ConfigOption(
    "restart-strategy.exponential-delay.backoff-multiplier",
    float,
    1.5,
    "Factor by which the delay grows at each failure.",
)
EXPONENTIAL_RESET: Final = ConfigOption(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    DurationType,
    3_600_000,
    "Time without a failure after which the delay is the initial one again.",
)
EXPONENTIAL_JITTER: Final = ConfigOption(
    "restart-strategy.exponential-delay.jitter-factor",
    float,
    0.1,
    "Fraction of the delay that is added or subtracted at random.",
)
EXPONENTIAL_ATTEMPTS: Final = ConfigOption(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    int,
    UNLIMITED,
    "Number of restarts without a reset of the delay before the job fails.",
)


class RestartStrategy(ABC):
    """Decides whether and when a failed job restarts. Used by one thread."""

    @abstractmethod
    def notify_failure(self, cause: BaseException | None = None) -> bool:
        """Record a failure that happened now.

        Returns:
            Whether it starts a new attempt; False if it is merged into an attempt that is already planned.
        """

    @abstractmethod
    def can_restart(self) -> bool:
        """Return whether the job restarts after the last failure."""

    @abstractmethod
    def get_backoff_time(self) -> int:
        """Return the delay before the restart, in milliseconds from now."""


class NoRestartStrategy(RestartStrategy):
    """Never restarts."""

    def notify_failure(self, cause: BaseException | None = None) -> bool:
        return True

    def can_restart(self) -> bool:
        return False

    def get_backoff_time(self) -> int:
        return 0

    def __str__(self) -> str:
        return "the restart strategy 'none'"


class FixedDelayRestartStrategy(RestartStrategy):
    """Restarts after a fixed delay, a fixed number of times."""

    def __init__(self, max_attempts: int, backoff_time_ms: int) -> None:
        _check(max_attempts >= 0, "attempts", "0 or more", max_attempts)
        _check(backoff_time_ms >= 0, "delay", "0 or more", backoff_time_ms)
        self._max_attempts = max_attempts
        self._backoff_time_ms = backoff_time_ms
        self._failures = 0

    def notify_failure(self, cause: BaseException | None = None) -> bool:
        self._failures += 1
        return True

    def can_restart(self) -> bool:
        return self._failures <= self._max_attempts

    def get_backoff_time(self) -> int:
        return self._backoff_time_ms

    def __str__(self) -> str:
        return f"the restart strategy 'fixed-delay' ({self._max_attempts} attempts, {self._backoff_time_ms} ms)"


class FailureRateRestartStrategy(RestartStrategy):
    """Restarts after a fixed delay, unless too many failures happen within an interval."""

    def __init__(
        self,
        max_failures_per_interval: int,
        failures_interval_ms: int,
        backoff_time_ms: int,
        clock: Clock | None = None,
    ) -> None:
        _check(max_failures_per_interval >= 1, "max-failures-per-interval", "1 or more", max_failures_per_interval)
        _check(failures_interval_ms >= 1, "failure-rate-interval", "1 ms or more", failures_interval_ms)
        _check(backoff_time_ms >= 0, "delay", "0 or more", backoff_time_ms)
        self._max_failures = max_failures_per_interval
        self._interval_ms = failures_interval_ms
        self._backoff_time_ms = backoff_time_ms
        self._clock = clock or SystemClock()
        self._failures: deque[int] = deque(maxlen=max_failures_per_interval + 1)

    def notify_failure(self, cause: BaseException | None = None) -> bool:
        self._failures.append(_now(self._clock))
        return True

    def can_restart(self) -> bool:
        if len(self._failures) <= self._max_failures:
            return True
        return _now(self._clock) - self._failures[0] > self._interval_ms

    def get_backoff_time(self) -> int:
        return self._backoff_time_ms

    def __str__(self) -> str:
        return f"the restart strategy 'failure-rate' ({self._max_failures} failures in {self._interval_ms} ms)"


class ExponentialDelayRestartStrategy(RestartStrategy):
    """Restarts after a delay that grows with each failure, and is reset after a long time without one."""

    def __init__(
        self,
        initial_backoff_ms: int,
        max_backoff_ms: int,
        backoff_multiplier: float,
        reset_backoff_threshold_ms: int,
        jitter_factor: float,
        attempts_before_reset_backoff: int = UNLIMITED,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        _check(initial_backoff_ms >= 1, "initial-backoff", "1 ms or more", initial_backoff_ms)
        _check(max_backoff_ms >= 1, "max-backoff", "1 ms or more", max_backoff_ms)
        _check(initial_backoff_ms <= max_backoff_ms, "initial-backoff", "at most max-backoff", initial_backoff_ms)
        _check(backoff_multiplier > 1, "backoff-multiplier", "above 1", backoff_multiplier)
        _check(reset_backoff_threshold_ms >= 1, "reset-backoff-threshold", "1 ms or more", reset_backoff_threshold_ms)
        _check(0 <= jitter_factor <= 1, "jitter-factor", "from 0 to 1", jitter_factor)
        _check(
            attempts_before_reset_backoff >= 1,
            "attempts-before-reset-backoff",
            "1 or more",
            attempts_before_reset_backoff,
        )
        self._initial_ms = initial_backoff_ms
        self._max_ms = max_backoff_ms
        self._multiplier = backoff_multiplier
        self._reset_threshold_ms = reset_backoff_threshold_ms
        self._jitter = jitter_factor
        self._max_attempts = attempts_before_reset_backoff
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - spreads restarts
        self._attempts = 0
        self._next_restart: int | None = None

    def notify_failure(self, cause: BaseException | None = None) -> bool:
        """Plan the next restart; a failure before the planned restart is merged into it."""
        now = _now(self._clock)
        if self._next_restart is not None:
            if now <= self._next_restart:
                return False
            if now - self._next_restart >= self._reset_threshold_ms:
                self._attempts = 0
        self._next_restart = now + self._delay()
        self._attempts += 1
        return True

    def can_restart(self) -> bool:
        return self._attempts <= self._max_attempts

    def get_backoff_time(self) -> int:
        """Return the time until the planned restart, in milliseconds.

        Raises:
            StateError: There was no failure yet.
        """
        if self._next_restart is None:
            raise StateError("Please call notify_failure first.")
        return max(0, self._next_restart - _now(self._clock))

    def _delay(self) -> int:
        try:
            delay = self._initial_ms * self._multiplier**self._attempts
        except OverflowError:
            return self._max_ms
        if math.isinf(delay):
            return self._max_ms
        delay += self._rng.uniform(-1, 1) * self._jitter * delay
        return round(min(max(delay, self._initial_ms), self._max_ms))

    def __str__(self) -> str:
        limit = "" if self._max_attempts == UNLIMITED else f", {self._max_attempts} attempts"
        return f"the restart strategy 'exponential-delay' ({self._initial_ms} to {self._max_ms} ms{limit})"


def restart_strategy_from(
    configuration: Configuration, clock: Clock | None = None, rng: random.Random | None = None
) -> RestartStrategy:
    """Return the strategy that a job's options select.

    Raises:
        ConfigurationError: There is no such strategy, or one of its options is out of bounds.
    """
    name = configuration.get(RESTART_STRATEGY) or "exponential-delay"
    match name.strip().lower():
        case "none" | "off" | "disable":
            return NoRestartStrategy()
        case "fixed-delay" | "fixeddelay":
            return FixedDelayRestartStrategy(configuration.get(FIXED_DELAY_ATTEMPTS), configuration.get(FIXED_DELAY))
        case "failure-rate" | "failurerate":
            return FailureRateRestartStrategy(
                configuration.get(FAILURE_RATE_MAX),
                configuration.get(FAILURE_RATE_INTERVAL),
                configuration.get(FAILURE_RATE_DELAY),
                clock,
            )
        case "exponential-delay" | "exponentialdelay":
            return ExponentialDelayRestartStrategy(
                configuration.get(EXPONENTIAL_INITIAL),
                configuration.get(EXPONENTIAL_MAX),
                configuration.get(EXPONENTIAL_MULTIPLIER),
                configuration.get(EXPONENTIAL_RESET),
                configuration.get(EXPONENTIAL_JITTER),
                configuration.get(EXPONENTIAL_ATTEMPTS),
                clock=clock,
                rng=rng,
            )
    raise ConfigurationError(
        f"Option {RESTART_STRATEGY.key!r}: {name!r} is not a restart strategy. "
        "Use none, fixed-delay, failure-rate or exponential-delay."
    )


def _now(clock: Clock) -> int:
    return round(clock.monotonic() * 1000)


def _check(is_valid: bool, what: str, expected: str, value: object) -> None:
    if not is_valid:
        raise ConfigurationError(f"Restart strategy: {what} must be {expected}, not {value!r}.")
