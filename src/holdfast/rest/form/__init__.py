"""The form of what the REST interface answers."""
