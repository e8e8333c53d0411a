"""Free ports for servers of tests."""

from __future__ import annotations

import pytest

from holdfast.testing.server import zookeeper


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was given one port for two of its listeners did not start."""
    first = zookeeper.free_port()
    monkeypatch.setattr(zookeeper, "_PORTS", (first, first + 20))
    assert len({first, *(zookeeper.free_port() for _ in range(9))}) == 10
