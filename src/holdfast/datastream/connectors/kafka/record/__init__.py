"""What elements become on their way into Kafka, and what the values of its records become elements by."""
