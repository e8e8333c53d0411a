"""Documents, and handles of what is stored."""
