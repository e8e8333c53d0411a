"""What programs say of their state, and the objects by which they reach it."""
