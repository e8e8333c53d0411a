"""Where streams begin and end outside of Holdfast: a module for each kind of place, named as in PyFlink."""

from holdfast.datastream.connectors.base import DeliveryGuarantee, Source

__all__ = ["DeliveryGuarantee", "Source"]
