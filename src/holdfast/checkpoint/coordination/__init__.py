"""The coordinator: from a trigger to a written pointer."""
