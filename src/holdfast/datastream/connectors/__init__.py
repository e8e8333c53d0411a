"""Sources and sinks for external systems, one module for each system, under PyFlink's names."""

from holdfast.datastream.connectors.base import DeliveryGuarantee, Source

__all__ = ["DeliveryGuarantee", "Source"]
