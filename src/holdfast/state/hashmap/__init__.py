"""The backend that holds decoded objects, and keeps them in the worker process from epoch to epoch."""
