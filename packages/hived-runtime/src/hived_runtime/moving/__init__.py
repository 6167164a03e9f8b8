"""A training process moves: a new process runs the same script to its first mini-batch, and takes the state over.

The destination is warm before the source stops (Gandiva, OSDI'18, 4.1 and 5.2: both are held meanwhile). The script
need not know: what is handed over is the whole Python state of the running script, variable by variable, with tensors,
random generators and the positions of loops and loaders. What cannot be handed over exactly is a reason not to move:
the destination is given up, and the source goes on.
"""
