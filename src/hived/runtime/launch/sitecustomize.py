"""Found first on the path of what ``hived run`` starts: makes every Python there ready for :mod:`hived.runtime`.

The script's own Python need not have hived installed: the package is loaded from where this file is. A sitecustomize of
the user's runs as it would without this one. Nothing here raises into the script.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def _start() -> None:
    here = Path(__file__).resolve().parent
    package = here.parent.parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    if importlib.util.find_spec("hived") is None:
        # a package of that name with these two parts and nothing of the scheduler
        hived = type(sys)("hived")
        hived.__path__ = [str(package)]
        sys.modules["hived"] = hived
    importlib.import_module("hived.runtime")  # it starts when the script imports torch


def _next() -> None:
    """Run the sitecustomize that this file hides, if there is one."""
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if mine is not None:
            sys.modules["sitecustomize"] = mine


try:
    _start()
except Exception as error:
    print(f"hived run: this Python cannot be managed, and runs as it would alone: {error}", file=sys.stderr)
_next()
