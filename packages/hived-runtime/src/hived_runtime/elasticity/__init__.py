"""Grow and shrink of data-parallel jobs that declare themselves elastic (Gandiva, OSDI'18, 4.1 and 4.2.2).

team.py      what the script holds: its workers, epochs and part of every global batch; the change of the group
group.py     the process group: made, left, and what goes through it: gradients, the wish, the state
recruiter.py what rank 0 does besides: reads the wish, starts new workers, reaps those that have left
"""
