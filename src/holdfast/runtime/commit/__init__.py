"""From an accepted epoch to the pointer of a checkpoint, and back from one."""
