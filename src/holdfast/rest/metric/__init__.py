"""The numbers of jobs: by their Flink names in JSON, and as Prometheus reads them."""
