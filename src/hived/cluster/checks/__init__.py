"""The re-derivation of the whole state from the groups: for tests, and for debugging in production."""

from .state import check_state

__all__ = ["check_state"]
