"""Clients of the Kubernetes API server: REST, lists and watches, leader election."""
