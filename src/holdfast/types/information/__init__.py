"""What is known of a type: each kind of type information."""
