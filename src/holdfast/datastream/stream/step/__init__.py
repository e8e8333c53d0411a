"""What is said of a single step: its name and uid, where it runs, how its elements go on, and the end of a stream."""
