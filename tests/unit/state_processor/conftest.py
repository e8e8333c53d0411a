"""The stories of the state processor live where those of the runtime do."""

from tests.unit.runtime.conftest import _a_process_that_knows_nothing, place

__all__ = ["_a_process_that_knows_nothing", "place"]
