"""Whole jobs in one process, without a JVM."""
