"""Values of state in JSON, which has no dates, decimals and bytes."""

from __future__ import annotations

import base64
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any


def json_value(value: Any) -> Any:
    """Return what stands for a value that JSON has not, as `default` of `json.dumps`: of bytes base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Decimal) else repr(value)
