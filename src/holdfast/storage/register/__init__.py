"""The register of a job: compare-and-set of the token, the pointers and the end."""
