"""The engine-independent heart: graph, plan, task, epochs, job master."""
