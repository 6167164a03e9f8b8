"""Explanations: why a group waits and where it runs, diagnosed as data and rendered as sentences."""
