"""`Configuration` under its path in PyFlink."""

from holdfast.kernel.configuration import Configuration

__all__ = ["Configuration"]
