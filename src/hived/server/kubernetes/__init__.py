"""HTTP server of HiveD on Kubernetes: extender, inspection, the API of the command line, metrics, dashboard."""
