"""The event log: the calls of a cluster, recorded as one line each and replayed byte for byte."""
