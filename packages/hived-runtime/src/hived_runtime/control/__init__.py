"""How a training job is told what to do, and asked how it goes, by other processes of its machine.

Shared by :mod:`hived_runtime` (inside the job) and by whoever commands jobs. Standard library only.
"""
