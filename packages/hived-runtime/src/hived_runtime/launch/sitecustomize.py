"""Found first on the path of what ``hived train run`` starts: makes every Python there ready for :mod:`hived_runtime`.

The script's own Python need not have it installed: the packages are loaded from where this file is. A sitecustomize of
the user's runs as it would without this one. Nothing here raises into the script.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def _start() -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    if importlib.util.find_spec("hived_runtime") is None:
        for name in ("hived_control", "hived_runtime"):  # the second imports the first
            spec = importlib.util.spec_from_file_location(name, here.parents[1] / name / "__init__.py")
            assert spec is not None
            package = importlib.util.module_from_spec(spec)
            sys.modules[name] = package
            assert spec.loader is not None
            spec.loader.exec_module(package)
    importlib.import_module("hived_runtime")  # it starts when the script imports torch


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
    print(f"hived train run: this Python cannot be managed, and runs as it would alone: {error}", file=sys.stderr)
_next()
