"""A strict API server for what high availability uses of Kubernetes."""
