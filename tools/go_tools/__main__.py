"""Runs one of the programs."""

from __future__ import annotations

import os
import sys

from . import NoProgramError, program

if len(sys.argv) < 2:
    sys.exit("usage: python -m tools.go_tools helm|actionlint [ARGUMENT...]")
try:
    path = program(sys.argv[1])
except NoProgramError as error:
    sys.exit(str(error))
os.execv(path, sys.argv[1:])
