"""Servers for tests: ZooKeeper, Kafka, S3, and a proxy that cuts connections."""
