"""Sources and sinks for external systems, one module for each system, under PyFlink's names."""

from holdfast.datastream.connectors.base import (
    DeliveryGuarantee,
    RealTimeSource,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)

__all__ = ["DeliveryGuarantee", "RealTimeSource", "Source", "SourceReader", "SourceSplit", "SplitEnumerator"]
