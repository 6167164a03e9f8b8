"""Jobs as processes on this machine: docs/explanation/engine.md has the map."""
