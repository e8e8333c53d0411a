"""What tests on Spark know of its version."""

from __future__ import annotations

import pyspark
import pytest

HAS_REAL_TIME = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)
needs_real_time = pytest.mark.skipif(not HAS_REAL_TIME, reason="Spark before 4.3 has no pipelined shuffle")
