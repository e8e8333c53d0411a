"""High availability: leader election and retrieval, and the stores that outlive a driver."""
