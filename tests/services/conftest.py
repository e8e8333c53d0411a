"""What several tests of servers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.databases import Database, of_request


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty one."""
    return of_request(request, tmp_path)
