"""The protocol between clients and servers, and its limits."""
