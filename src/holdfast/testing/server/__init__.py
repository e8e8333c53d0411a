"""Servers for tests: ZooKeeper, S3, and a proxy that cuts connections."""
