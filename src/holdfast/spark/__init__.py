"""The only package that imports pyspark: planning, epochs, sources and placement."""
