"""Messages, columns and reports that cross between the driver and tasks, and between tasks."""
