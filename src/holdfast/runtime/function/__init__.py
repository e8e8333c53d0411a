"""What users subclass: functions and sinks."""
