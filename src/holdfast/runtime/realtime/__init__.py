"""Real-time jobs: tasks that live until they are stopped, and barriers between their records."""
