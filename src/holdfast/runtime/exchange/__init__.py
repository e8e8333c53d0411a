"""What crosses between the driver and tasks, and between tasks."""
