"""Scheduling of gangs of pods. Pure: observed state in, decisions and instructions out."""
