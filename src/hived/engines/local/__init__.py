"""Jobs as processes on this machine: docs/engine.md has the map."""
