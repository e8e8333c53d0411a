"""Verbs that look into checkpoints and savepoints, or make others of them; no job runs."""
