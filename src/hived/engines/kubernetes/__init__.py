"""HiveD on Kubernetes: what pods ask for, what is decided about them, and how that becomes true there."""
