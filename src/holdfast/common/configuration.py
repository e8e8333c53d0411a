"""Configuration under its PyFlink name."""

from holdfast.kernel.configuration import Configuration

__all__ = ["Configuration"]
