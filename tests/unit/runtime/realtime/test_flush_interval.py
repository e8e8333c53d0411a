"""How long elements wait to be sent with others, on a host with free cores and on a busy one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.realtime import task_meter
from holdfast.runtime.realtime.task_meter import FlushInterval, waited_for_a_core

LEAST = 0.004


class Host:
    """Its scheduler lets the thread wait for a share of the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.waited = 0.0
        monkeypatch.setattr(task_meter, "waited_for_a_core", lambda: self.waited)
        self.interval = FlushInterval(LEAST, self.now)

    def run(self, seconds: float, share: float) -> float:
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01
            self.waited += 0.01 * share
            self.interval.adapt(self.now)
        return self.interval.seconds


def test_elements_wait_longer_while_the_thread_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    assert host.run(1, 0.05) == LEAST
    assert LEAST < host.run(0.3, 0.5) < 0.02
    assert host.run(2, 0.5) == 0.02
    assert host.run(1, 0.15) == 0.02, "between both limits it stays"
    assert host.run(3, 0.0) == LEAST


def test_an_interval_that_is_longer_anyhow_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_meter, "waited_for_a_core", lambda: 0.0)
    interval = FlushInterval(0.05, 0.0)
    monkeypatch.setattr(task_meter, "waited_for_a_core", lambda: 10.0)
    interval.adapt(1.0)
    assert interval.seconds == 0.05


def test_a_system_that_does_not_say_it_has_free_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert waited_for_a_core() >= 0
    for text in ("", "12", "a b c"):
        (tmp_path / "schedstat").write_text(text)
        monkeypatch.setattr(task_meter, "_SCHEDULER", tmp_path / "schedstat")
        assert waited_for_a_core() == 0
    monkeypatch.setattr(task_meter, "_SCHEDULER", tmp_path / "none")
    assert waited_for_a_core() == 0
