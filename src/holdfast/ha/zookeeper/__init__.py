"""High availability over ZooKeeper; the only package that imports kazoo."""
