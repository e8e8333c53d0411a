"""User functions at work: opened once a process, copied for each task, driven batch by batch."""

from holdfast.runtime.operator.context import MAX_WATERMARK, MIN_WATERMARK, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.failure import user_error
from holdfast.runtime.operator.opened import OpenedOperator
from holdfast.runtime.operator.stamped import StampedSubtask, Stamps
from holdfast.runtime.operator.subtask import OperatorSubtask

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "OpenedOperator",
    "OperatorSubtask",
    "StampedSubtask",
    "Stamps",
    "SubtaskContext",
    "SubtaskInfo",
    "user_error",
]
