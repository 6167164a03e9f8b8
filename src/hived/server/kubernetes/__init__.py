"""HiveD on Kubernetes over HTTP: the extender, inspection, the API of the command line, metrics, the dashboard."""
