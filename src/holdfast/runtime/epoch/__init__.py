"""One epoch: run, and accepted or run again."""
