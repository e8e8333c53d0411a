"""Operators in a task: functions that are opened once a process, copied for each task, and called batch by batch."""

from holdfast.runtime.operator.context import SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.operator_instance import OpenedSelector, OperatorInstance, user_error
from holdfast.runtime.operator.subtask import GroupedSubtask, OperatorSubtask, TimestampedSubtask

__all__ = [
    "GroupedSubtask",
    "OpenedSelector",
    "OperatorInstance",
    "OperatorSubtask",
    "SubtaskContext",
    "SubtaskInfo",
    "TimestampedSubtask",
    "user_error",
]
