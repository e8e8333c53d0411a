"""State into the files of a savepoint, in this process or in tasks."""
