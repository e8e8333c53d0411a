"""Time that goes on while the clock of the machine is set back, and the steps of that clock."""

from __future__ import annotations

from holdfast.kernel.clock import ForwardTime, ManualClock, StepDetector

HOUR = 3_600_000


def test_time_follows_the_wall_clock() -> None:
    clock = ManualClock(1_000)
    time = ForwardTime(clock)
    assert time.now_ms() == 1_000
    clock.advance(250)
    assert (time.now_ms(), time.ahead_ms()) == (1_250, 0)
    clock.set(10 * HOUR)
    assert time.now_ms() == 10 * HOUR


def test_time_goes_on_while_the_wall_clock_is_an_hour_behind_and_meets_it_again() -> None:
    clock = ManualClock(10 * HOUR)
    time = ForwardTime(clock)
    time.now_ms()
    clock.set(9 * HOUR)
    assert (time.now_ms(), time.ahead_ms()) == (10 * HOUR, HOUR)
    clock.advance(10_000)
    assert time.now_ms() == 10 * HOUR + 9_000
    clock.advance(9 * HOUR)
    assert 0 < time.ahead_ms() < HOUR // 9
    clock.advance(HOUR)
    assert (time.now_ms(), time.ahead_ms()) == (clock.now_ms(), 0)


def test_a_host_whose_clock_is_behind_that_of_the_host_before_goes_on_where_that_was() -> None:
    clock = ManualClock(5_000)
    time = ForwardTime(clock, start_ms=HOUR)
    assert time.now_ms() == HOUR
    clock.advance(1_000)
    assert time.now_ms() == HOUR + 900


def test_a_step_back_is_reported_once_and_steps_forward_and_pauses_are_none() -> None:
    clock = ManualClock(10 * HOUR)
    detector = StepDetector(clock)
    clock.advance(HOUR)
    assert detector.step_back_ms() == 0
    clock.set(10 * HOUR)
    assert detector.step_back_ms() == HOUR
    assert detector.step_back_ms() == 0
    clock.set(13 * HOUR)
    assert detector.step_back_ms() == 0
    clock.set(clock.now_ms() - 4_000)
    assert detector.step_back_ms() == 0, "within the tolerance"


def test_a_process_that_pauses_between_two_readings_sees_no_step() -> None:
    class Paused(ManualClock):
        """Pauses for a minute after the wall clock was read, or before."""

        before = after = 0

        def now_ms(self) -> int:
            self.advance(self.before)
            now = super().now_ms()
            self.advance(self.after)
            return now

    clock = Paused(HOUR)
    detector = StepDetector(clock)
    for clock.before, clock.after in ((60_000, 0), (0, 60_000), (0, 0), (60_000, 0), (0, 0)):
        clock.advance(200)
        assert detector.step_back_ms() == 0
