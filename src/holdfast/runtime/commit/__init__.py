"""From an accepted epoch to the pointer of its checkpoint and the commits of sinks, and back on a restore."""
