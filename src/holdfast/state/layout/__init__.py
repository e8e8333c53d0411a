"""How a declared state lies in the columns of a run."""
