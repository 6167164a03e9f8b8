"""A training process moves: a new process runs the same script to where it names its state, and takes that over there.

The destination waits there, its imports, data and model made, before the source stops (Gandiva, OSDI'18, 4.1 and 5.2:
both are held meanwhile). What is handed over is what the script has named (:mod:`.named`), and no more. Whatever fails
is a reason not to move: the destination is given up, and the source goes on.
"""
