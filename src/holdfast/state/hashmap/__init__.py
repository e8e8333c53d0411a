"""The state backend `hashmap`: decoded objects that stay in the worker process from epoch to epoch."""
