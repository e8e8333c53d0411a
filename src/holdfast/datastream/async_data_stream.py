"""Asynchronous I/O: many elements of a stream wait for an external system at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.operation import declared_type
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.async_function import AsyncFunction, AsyncRetryStrategy
from holdfast.runtime.graph.stream_graph import NonKeyedNode, OperatorSpec
from holdfast.runtime.operator.async_operation import AsyncOperation


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream, in order or as results arrive.

    At most `capacity` elements wait at once in a task. In a job by epochs they are of one batch, and the task waits for
    all of them. In a real-time job it goes on, and results are emitted when they arrive. All results arrive before the
    barrier of the epoch, so no checkpoint has a waiting element, and results are emitted exactly once; the call itself
    may be repeated when an epoch runs again.

        >>> class Lookup(AsyncFunction):
        ...     async def async_invoke(self, value):
        ...         return [value.upper()]
        >>> words = env.from_collection(["a", "b"], "string")
        >>> found = AsyncDataStream.ordered_wait(words, Lookup(), Time.seconds(10), output_type="string")
        >>> list(found.execute_and_collect())
        ['A', 'B']
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: timedelta,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit results as they arrive.

        Args:
            data_stream: The stream.
            async_function: The function.
            timeout: The time that an element may take; then `async_function.timeout` returns its result.
            capacity: Number of elements of a task that wait at once.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: An argument does not fit.
        """
        retry = AsyncRetryStrategy.no_restart()
        return _add_async_operator(data_stream, async_function, timeout, retry, capacity, output_type, is_ordered=False)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: timedelta,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit results as they arrive, and repeat failed calls.

        Args:
            data_stream: The stream.
            async_function: The function.
            timeout: The time that an element may take; then `async_function.timeout` returns its result.
            async_retry_strategy: When a call is repeated; the timeout is for all attempts together.
            capacity: Number of elements of a task that wait at once.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: An argument does not fit.
        """
        retry = async_retry_strategy
        return _add_async_operator(data_stream, async_function, timeout, retry, capacity, output_type, is_ordered=False)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: timedelta,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit results in the order of their elements; the class has an example.

        Args:
            data_stream: The stream.
            async_function: The function.
            timeout: The time that an element may take; then `async_function.timeout` returns its result.
            capacity: Number of elements of a task that wait at once.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: An argument does not fit.
        """
        retry = AsyncRetryStrategy.no_restart()
        return _add_async_operator(data_stream, async_function, timeout, retry, capacity, output_type, is_ordered=True)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: timedelta,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Emit results in the order of their elements, and repeat failed calls.

        Args:
            data_stream: The stream.
            async_function: The function.
            timeout: The time that an element may take; then `async_function.timeout` returns its result.
            async_retry_strategy: When a call is repeated; the timeout is for all attempts together.
            capacity: Number of elements of a task that wait at once.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: An argument does not fit.
        """
        retry = async_retry_strategy
        return _add_async_operator(data_stream, async_function, timeout, retry, capacity, output_type, is_ordered=True)


def _add_async_operator(
    stream: Any, function: Any, timeout: Any, retry: Any, capacity: Any, output_type: Any, *, is_ordered: bool
) -> DataStream:
    milliseconds = timeout // timedelta(milliseconds=1) if isinstance(timeout, timedelta) else -1
    for is_right, what, given in (
        (isinstance(stream, DataStream), "data_stream is a DataStream", stream),
        (isinstance(function, AsyncFunction), "async_function is an instance of AsyncFunction", function),
        (milliseconds > 0, "timeout is a positive length of time, such as Time.seconds(10)", timeout),
        (isinstance(retry, AsyncRetryStrategy), "async_retry_strategy is an AsyncRetryStrategy", retry),
        (type(capacity) is int and capacity > 0, "capacity is a positive number", capacity),
    ):
        if not is_right:
            raise ConfigurationError(f"AsyncDataStream: {what}, not {given!r}.")
    element_type = declared_type(output_type, "AsyncDataStream")
    operation = AsyncOperation(function, milliseconds, retry, capacity, is_ordered)
    spec = OperatorSpec(operation, "async", False, stream.get_type(), element_type)
    name = f"async_{'ordered' if is_ordered else 'unordered'}"
    node = NonKeyedNode(inputs=(stream._node,), name=name, element_type=element_type, operator=spec)
    return DataStream(stream._environment, node)
