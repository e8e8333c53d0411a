"""Fixtures of the state processor, shared with the runtime."""

from tests.unit.runtime.conftest import _a_process_that_knows_nothing, place

__all__ = ["_a_process_that_knows_nothing", "place"]
