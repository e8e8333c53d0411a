"""The processes of jobs: how they are started, what they say, how they end with their job manager."""
