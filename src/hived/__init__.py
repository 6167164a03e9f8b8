"""HiveD in Python: share a GPU cluster so that nobody is worse off than on a private one."""

__version__ = "0.1.0"
