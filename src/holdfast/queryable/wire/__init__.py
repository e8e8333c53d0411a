"""What clients and servers say to each other, and the limits of it."""
