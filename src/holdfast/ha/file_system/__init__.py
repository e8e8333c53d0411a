"""High availability over a shared directory: leases, pointers and results in files that are created exclusively."""
