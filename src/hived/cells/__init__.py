"""Cells: hierarchies, the buddy cell allocator, and what is free inside and among hosts. Pure."""

from .allocator import BuddyAllocator
from .hierarchy import Hierarchy
from .hosts import HostClass, HostIndex, Rank, Ranking
from .index_set import IndexSet
from .safety import LevelSafety, assert_safe, safety
from .shape import Profile, Shape, leaves_of, shape_of
from .siblings import Siblings
from .whole_hosts import WholeHosts

__all__ = [
    "BuddyAllocator",
    "Hierarchy",
    "HostClass",
    "HostIndex",
    "IndexSet",
    "LevelSafety",
    "Profile",
    "Rank",
    "Ranking",
    "Shape",
    "Siblings",
    "WholeHosts",
    "assert_safe",
    "leaves_of",
    "safety",
    "shape_of",
]
