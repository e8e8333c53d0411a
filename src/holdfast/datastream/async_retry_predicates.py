"""Predicates for retries of asynchronous calls, under PyFlink's path."""

from holdfast.runtime.function.async_function import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]
