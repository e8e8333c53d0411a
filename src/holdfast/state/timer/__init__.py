"""Timers: those of a task, and those that lie in runs."""
