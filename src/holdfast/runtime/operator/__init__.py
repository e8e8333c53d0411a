"""User functions at work: opened once a process, copied for each task, driven batch by batch."""

from holdfast.runtime.operator.context import SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.failure import user_error
from holdfast.runtime.operator.grouped import GroupedSubtask
from holdfast.runtime.operator.operator_instance import OpenedSelector, OperatorInstance
from holdfast.runtime.operator.stamped import StampedSubtask
from holdfast.runtime.operator.subtask import OperatorSubtask

__all__ = [
    "GroupedSubtask",
    "OpenedSelector",
    "OperatorInstance",
    "OperatorSubtask",
    "StampedSubtask",
    "SubtaskContext",
    "SubtaskInfo",
    "user_error",
]
