"""HiveD on Kubernetes: requests of pods, gang scheduling, and the actions that carry out its decisions."""
