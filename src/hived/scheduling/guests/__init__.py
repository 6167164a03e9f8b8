"""Guests: jobs beside the owners of their GPUs (AntMan, OSDI'20)."""

from .parameters import GuestSharing

__all__ = ["GuestSharing"]
