"""Restart strategies, by the contract's examples and by stories told on a manual clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.restart_strategy import (
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    FixedDelayRestartStrategy,
    NoRestartStrategy,
    restart_strategy_from,
)


def exponential(clock, *, jitter=0.0, attempts=2**31 - 1, threshold=60_000, initial=1000, longest=10_000, seed=1):
    return ExponentialDelayRestartStrategy(
        initial, longest, 2.0, threshold, jitter, attempts, clock=clock, rng=random.Random(seed)
    )


def fail(strategy):
    strategy.notify_failure(RuntimeError("x"))
    return strategy.can_restart()


def test_none_never_restarts():
    assert not fail(NoRestartStrategy())


def test_fixed_delay_with_three_attempts_allows_three_restarts():
    strategy = FixedDelayRestartStrategy(3, 500)
    assert [fail(strategy) for _ in range(4)] == [True, True, True, False]
    assert strategy.get_backoff_time() == 500


def test_failure_rate_allows_three_failures_in_ten_seconds():
    clock = ManualClock()
    strategy = FailureRateRestartStrategy(3, 10_000, 20, clock)
    assert [fail(strategy) for _ in range(4)] == [True, True, True, False]


def test_failure_rate_forgets_failures_older_than_the_interval():
    clock = ManualClock()
    strategy = FailureRateRestartStrategy(1, 1, 0, clock)
    for _ in range(10):
        assert fail(strategy)
        clock.advance(2)
    exactly = FailureRateRestartStrategy(1, 10, 0, clock)
    assert fail(exactly)
    clock.advance(10)
    assert not fail(exactly)  # not older than the interval, but as old


def test_exponential_delay_doubles_up_to_the_longest_pause():
    clock = ManualClock()
    strategy = exponential(clock)
    pauses = []
    for _ in range(6):
        assert strategy.notify_failure()
        pauses.append(strategy.get_backoff_time())
        clock.advance(pauses[-1] + 1)
    assert pauses == [1000, 2000, 4000, 8000, 10_000, 10_000]


def test_failures_before_the_planned_restart_belong_to_the_same_attempt():
    clock = ManualClock()
    strategy = exponential(clock)
    assert strategy.notify_failure()
    clock.advance(998)
    assert not strategy.notify_failure()
    assert strategy.get_backoff_time() == 2
    clock.advance(2)
    assert not strategy.notify_failure()  # at the planned time itself
    clock.advance(1)
    assert strategy.notify_failure()
    assert strategy.get_backoff_time() == 2000


def test_a_long_time_without_failure_makes_the_pause_short_again():
    clock = ManualClock()
    strategy = exponential(clock, threshold=60_000)
    for _ in range(3):
        strategy.notify_failure()
        clock.advance(strategy.get_backoff_time() + 1)
    clock.advance(59_998)
    strategy.notify_failure()
    assert strategy.get_backoff_time() == 8000  # one millisecond too early
    clock.advance(8000 + 60_000)
    strategy.notify_failure()
    assert strategy.get_backoff_time() == 1000


def test_the_number_of_attempts_before_a_reset_is_bounded():
    clock = ManualClock()
    strategy = exponential(clock, attempts=2)
    allowed = []
    for _ in range(3):
        allowed.append(fail(strategy))
        clock.advance(strategy.get_backoff_time() + 1)
    assert allowed == [True, True, False]


def test_asking_before_any_failure_is_an_error():
    with pytest.raises(StateError, match="call notify_failure first"):
        exponential(ManualClock()).get_backoff_time()


@given(st.floats(0, 1), st.integers(0, 2**32), st.integers(1, 3000))
def test_the_pause_stays_between_the_first_and_the_longest_whatever_the_jitter(jitter, seed, failures):
    clock = ManualClock()
    strategy = exponential(clock, jitter=jitter, seed=seed)
    for _ in range(min(failures, 40)):
        strategy.notify_failure()
        assert 1000 <= strategy.get_backoff_time() <= 10_000
        clock.advance(strategy.get_backoff_time() + 1)


def test_thousands_of_failures_do_not_overflow():
    clock = ManualClock()
    strategy = exponential(clock, jitter=0.1)
    for _ in range(3000):
        strategy.notify_failure()
        clock.advance(strategy.get_backoff_time() + 1)
    strategy.notify_failure()
    assert strategy.get_backoff_time() == 10_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", NoRestartStrategy),
        ("off", NoRestartStrategy),
        ("disable", NoRestartStrategy),
        ("fixed-delay", FixedDelayRestartStrategy),
        ("fixedDelay", FixedDelayRestartStrategy),
        ("failure-rate", FailureRateRestartStrategy),
        ("failurerate", FailureRateRestartStrategy),
        ("exponential-delay", ExponentialDelayRestartStrategy),
        ("ExponentialDelay", ExponentialDelayRestartStrategy),
        (None, ExponentialDelayRestartStrategy),
    ],
)
def test_strategies_by_name(name, expected):
    configuration = Configuration() if name is None else Configuration({"restart-strategy.type": name})
    assert type(restart_strategy_from(configuration, ManualClock())) is expected


def test_the_older_key_still_works_and_unknown_strategies_are_refused():
    assert type(restart_strategy_from(Configuration({"restart-strategy": "none"}))) is NoRestartStrategy
    with pytest.raises(ConfigurationError, match="'sometimes' is not a restart strategy"):
        restart_strategy_from(Configuration({"restart-strategy.type": "sometimes"}))


def test_options_reach_the_strategy():
    clock = ManualClock()
    configuration = Configuration(
        {
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "2 s",
            "restart-strategy.exponential-delay.backoff-multiplier": "3",
            "restart-strategy.exponential-delay.jitter-factor": 0,
        }
    )
    strategy = restart_strategy_from(configuration, clock)
    strategy.notify_failure()
    assert strategy.get_backoff_time() == 2000
    clock.advance(2001)
    strategy.notify_failure()
    assert strategy.get_backoff_time() == 6000


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_backoff_ms": 0},
        {"max_backoff_ms": 0},
        {"initial_backoff_ms": 20, "max_backoff_ms": 10},
        {"backoff_multiplier": 1.0},
        {"reset_backoff_threshold_ms": 0},
        {"jitter_factor": -0.1},
        {"jitter_factor": 1.1},
        {"attempts_before_reset_backoff": 0},
    ],
)
def test_arguments_out_of_bounds_are_refused(wrong):
    right = {
        "initial_backoff_ms": 1,
        "max_backoff_ms": 10,
        "backoff_multiplier": 2.0,
        "reset_backoff_threshold_ms": 10,
        "jitter_factor": 0.1,
    }
    with pytest.raises(ConfigurationError):
        ExponentialDelayRestartStrategy(**right | wrong)
