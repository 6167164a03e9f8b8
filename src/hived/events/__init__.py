"""The event log: a cluster whose calls are written down, one line each, and carried out again to the byte."""
