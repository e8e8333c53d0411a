"""Real-time jobs: tasks that live as long as the attempt, and barriers between their records."""
