"""State of operators without keys: lists, unions and broadcast."""
