"""The rule by which state with a time to live expires, for tasks and for compaction.

Tasks apply it in `hashmap/expiring_handles.py`, compaction when it merges the oldest run.
"""

from __future__ import annotations


def last_expired_stamp(now: int, time_to_live: int) -> int:
    """Return the greatest time of last use that has expired; later ones are kept. All times are milliseconds."""
    return now - time_to_live
