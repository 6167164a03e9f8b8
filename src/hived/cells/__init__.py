"""Cells: hierarchies, the buddy cell allocator, and the placement of gangs inside and across hosts. Pure."""

from .buddy import BuddyAllocator
from .capacity import Counts
from .fit import Found, count_fitting, find
from .hierarchy import Hierarchy
from .host_fit import Demand, Leaves, Need, apart, level_of, place
from .index_set import IndexSet
from .packing import Steps, backtrack
from .safety import LevelSafety, assert_safe, safety
from .shape import Profile, Shape, leaves_of, shape_of
from .space import HostClass, Rank, Space, is_packing, packs

__all__ = [
    "BuddyAllocator",
    "Counts",
    "Demand",
    "Found",
    "Hierarchy",
    "HostClass",
    "IndexSet",
    "Leaves",
    "LevelSafety",
    "Need",
    "Profile",
    "Rank",
    "Shape",
    "Space",
    "Steps",
    "apart",
    "assert_safe",
    "backtrack",
    "count_fitting",
    "find",
    "is_packing",
    "leaves_of",
    "level_of",
    "packs",
    "place",
    "safety",
    "shape_of",
]
