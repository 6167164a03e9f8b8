"""The command line: one file per group of verbs."""

from .app import main

__all__ = ["main"]
