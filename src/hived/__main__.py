"""``python -m hived`` is ``hived``."""

from hived.cli import main

main()
