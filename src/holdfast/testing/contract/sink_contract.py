"""What every sink that is exactly once must do, as a pytest class.

A test module derives from `SinkContract` and gives the fixture ``sink_backend``::

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink_backend(self, tmp_path):
            return MyTarget(tmp_path)

`MyTarget` is a `SinkBackend`, an instance that can be pickled: it makes the sink, reads what readers of the target see,
and takes the target away. Everything is judged by what readers see. Some tests kill processes in the middle of a
commit, at lines all over it, or let them sleep there while another process commits. A target that cannot take every row
names one that it refuses (`refused_row`).
"""

from __future__ import annotations

import pytest

from holdfast.testing.sink_contract.commit_contract import CommitContract
from holdfast.testing.sink_contract.job_contract import JobContract
from holdfast.testing.sink_contract.refusal_contract import RefusalContract
from holdfast.testing.sink_contract.sink_backend import SinkBackend


class SinkContract(CommitContract, JobContract, RefusalContract):
    """The behaviour of a sink."""

    @pytest.fixture
    def sink_backend(self) -> SinkBackend:
        """The target under test, empty."""
        pytest.skip("derive from SinkContract and override the fixture sink_backend")
