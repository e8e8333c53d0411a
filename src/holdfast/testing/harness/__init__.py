"""One operator over rows, watermarks and snapshots, without a JVM."""
