"""The base of all packages: ids, clocks, key groups, options, watermark strategies, redaction, fault points."""
