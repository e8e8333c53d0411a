"""Watermark strategies under their path in PyFlink."""

from holdfast.kernel.watermark import ColumnTimestampAssigner, TimestampAssigner, WatermarkStrategy

__all__ = ["ColumnTimestampAssigner", "TimestampAssigner", "WatermarkStrategy"]
