"""How a training job is told what to do, and asked how it goes, by other processes of its machine.

Shared by :mod:`hived_runtime` (inside the job) and by whoever commands jobs. A package beside it, since to import that
one makes a process a training job. Standard library only; nothing is started, and nothing patched.
"""
