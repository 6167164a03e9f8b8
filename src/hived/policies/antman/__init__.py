"""AntMan (OSDI'20): the policy, and what an agent of a node decides beside the jobs of a GPU."""

from .parameters import GuestSharing
from .policy import AntMan

__all__ = ["AntMan", "GuestSharing"]
