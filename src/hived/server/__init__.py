"""The HTTP API and the dashboard, over an engine that runs or a simulation that has ended."""
