import threading
import time

import pytest

from holdfast.kernel.clock import ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic()) == (1_250, 0.25)


def test_setting_the_wall_clock_back_never_moves_monotonic_time_back():
    clock = ManualClock(10_000)
    clock.set(4_000)
    assert (clock.now_ms(), clock.monotonic()) == (4_000, 0.0)
    clock.set(5_000)
    assert (clock.now_ms(), clock.monotonic()) == (5_000, 1.0)
    with pytest.raises(ValueError, match="use set"):
        clock.advance(-1)


def test_a_sleeper_wakes_when_its_time_has_come():
    clock = ManualClock()
    woken = []
    sleeper = threading.Thread(target=lambda: woken.append(clock.sleep(10)))
    sleeper.start()
    while clock.sleepers == 0:
        time.sleep(0.001)
    clock.advance(9_999)
    assert sleeper.is_alive()
    clock.advance(1)
    sleeper.join(60)
    assert woken == [False]


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()], ids=["manual", "system"])
def test_an_event_ends_the_sleep(clock):
    wake = threading.Event()
    woken = []
    sleeper = threading.Thread(target=lambda: woken.append(clock.sleep(3600, wake)))
    sleeper.start()
    wake.set()
    sleeper.join(60)
    assert woken == [True]


def test_the_system_clock_tells_the_time():
    clock = SystemClock()
    assert abs(clock.now_ms() / 1000 - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()
    assert clock.sleep(0) is False
    assert clock.sleep(-1, threading.Event()) is False
