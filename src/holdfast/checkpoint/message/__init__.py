"""What the coordinator and tasks say to each other."""
