"""What a user says that is to become state: tables with their columns, and functions."""
