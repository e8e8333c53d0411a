"""State: descriptors, handles, timers, runs, versions and backends."""
