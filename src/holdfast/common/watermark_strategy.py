"""Watermark strategies under their PyFlink name."""

from holdfast.kernel.watermark import ColumnTimestampAssigner, TimestampAssigner, WatermarkStrategy

__all__ = ["ColumnTimestampAssigner", "TimestampAssigner", "WatermarkStrategy"]
