"""State at rest: runs, and the versions that they make up."""
