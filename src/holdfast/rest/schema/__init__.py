"""JSON schemas of requests and responses, by path."""
