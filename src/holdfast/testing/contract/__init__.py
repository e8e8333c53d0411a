"""Contracts as test classes: subclass one, and give it a factory as a fixture."""
