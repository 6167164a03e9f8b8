"""A real control plane of Kubernetes on loopback, and the service on it: for the tests, benchmarks and the playground.

Standard library only, as :mod:`.binaries` is: CI runs that before anything is installed.
"""
