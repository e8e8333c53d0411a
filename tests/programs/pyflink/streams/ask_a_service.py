"""Asynchronous calls of a slow, failing service: in order, with retries and a value after a timeout."""

import asyncio

from pyflink.common import Time, Types
from pyflink.datastream import AsyncDataStream, AsyncFunction, AsyncRetryStrategy, StreamExecutionEnvironment


class Ask(AsyncFunction[int, str]):
    def __init__(self):
        self.asked = {}

    async def async_invoke(self, value: int) -> list[str]:
        self.asked[value] = self.asked.get(value, 0) + 1
        if value == 3:
            await asyncio.sleep(60)
        await asyncio.sleep(0.05 * (5 - value))
        if value % 2 == 0 and self.asked[value] < 3:
            raise ConnectionError("not yet")
        return [f"{value} squared is {value * value}, asked {self.asked[value]} times"]

    def timeout(self, value: int) -> list[str]:
        return [f"{value} took too long"]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
retry = AsyncRetryStrategy.fixed_delay(
    max_attempts=5,
    backoff_time_millis=10,
    result_predicate=None,
    exception_predicate=lambda error: isinstance(error, ConnectionError),
)
numbers = env.from_collection([1, 2, 3, 4], type_info=Types.INT())
asked = AsyncDataStream.ordered_wait_with_retry(numbers, Ask(), Time.seconds(3), retry, 10, Types.STRING())
asked.map(lambda answer: f"answer {answer}", output_type=Types.STRING()).print()
env.execute("ask a service")
