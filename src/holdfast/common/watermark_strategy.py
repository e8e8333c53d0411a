"""Watermark strategies under their PyFlink name."""

from holdfast.kernel.watermark import TimestampAssigner, WatermarkStrategy

__all__ = ["TimestampAssigner", "WatermarkStrategy"]
