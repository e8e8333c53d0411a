"""Who leads, and how others learn it."""
