"""The API server of Kubernetes: its REST API, lists and watches, one leader among replicas."""
