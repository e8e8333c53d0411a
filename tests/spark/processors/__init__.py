"""Programs for Spark's `transformWithState`, and what Spark made of them."""
