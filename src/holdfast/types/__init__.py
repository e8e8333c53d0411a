"""Types of values: their Arrow form, their rows, keys and serializers."""
