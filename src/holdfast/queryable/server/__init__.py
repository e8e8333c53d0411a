"""The query server: connections, answers, and routing between servers."""
