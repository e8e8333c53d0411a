"""What runs: the driver of the state machine, the job manager around it, its REST interface and its client."""
