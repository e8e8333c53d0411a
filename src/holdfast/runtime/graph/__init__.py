"""The graph of a program, and its plan: stages, steps and edges."""
