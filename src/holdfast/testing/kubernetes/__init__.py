"""A Kubernetes API server for tests: ConfigMaps, Leases, and what else high availability uses."""
