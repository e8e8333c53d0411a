"""What is kept, and what may be deleted when."""
