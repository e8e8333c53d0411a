"""Where a program begins and is run."""
