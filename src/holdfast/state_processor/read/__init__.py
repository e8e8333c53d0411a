"""States of a savepoint as tables."""
