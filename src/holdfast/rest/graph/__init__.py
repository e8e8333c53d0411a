"""The graph of a job as REST shows it, with what has flowed through it."""
