"""The plan of a job, as its file has it."""

from holdfast.ha.execution_plan_store import execution_plan_serializer
from tests.fuzz.document import PATH, sealed


def parse(data: bytes) -> None:
    execution_plan_serializer().to_bytes(
        execution_plan_serializer().from_bytes(sealed("execution-plan", 1, data), PATH)
    )
