"""The operator of windows: what it keeps of each window in state, and when it asks a window function."""
