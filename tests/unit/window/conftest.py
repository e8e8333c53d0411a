"""Where the jobs of these stories live: as those of the runtime."""

from tests.unit.runtime.conftest import _a_process_that_knows_nothing, place

__all__ = ["_a_process_that_knows_nothing", "place"]
