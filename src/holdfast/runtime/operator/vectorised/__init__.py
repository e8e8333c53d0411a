"""Functions of whole batches at work: what they see, the reductions that are built in, and one subtask of them."""
