"""The agent of a node: what decides there, next to the jobs. Pure; it knows nothing of the scheduler."""
