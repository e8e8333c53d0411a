"""A deterministic simulation of jobs: one seed decides everything that happens. `docs/simulation.md` tells of it."""
