"""The papers' evaluations, run again: every figure and table with the paper's number beside ours."""
