"""State that holds nothing but the mapped runs and what the epoch has changed."""
