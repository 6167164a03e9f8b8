"""The re-derivation of what cells and hosts are known by: for tests, and for debugging in production."""

from .allocator import check_allocator
from .spaces import check_counts, check_space

__all__ = ["check_allocator", "check_counts", "check_space"]
