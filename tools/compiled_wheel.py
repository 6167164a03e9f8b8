"""The build hook of the compiled form: a wheel whose deciding modules are native code, made from the same source.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .

mypyc compiles a copy of the source, so that no extension module is left in the checkout; the wheel has each module in
both forms, and Python takes the native one. An editable install stays plain.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: compiled packages and modules
COMPILED = (
    "cells",
    "cluster",
    "policies/antman/guest_scheduler.py",
    "policies/gandiva",
    "scheduling",
    "simulator/record.py",
    "simulator/simulation.py",
)
#: of these, plain Python: a native class refuses subclasses, patches and values of another type than its
#: annotations say, and has no annotations at run time
PLAIN = {
    "cluster/cluster.py",  # the contract: users subclass it, and it checks their arguments
    "cluster/checked.py",
    # data that other packages read, write and make: the event log goes by the annotations of its records
    "cluster/decisions.py",
    "cluster/explain/reasons.py",
    "cluster/placement_request.py",
    "cluster/requests.py",
    "scheduling/instructions.py",
    "scheduling/policy.py",
    "scheduling/states.py",
    # policies and their parameters, which say themselves what is wrong with a value; and a protocol
    "policies/gandiva/parameters.py",
    "policies/gandiva/policy.py",
    "scheduling/numbers.py",
    "scheduling/probe.py",
    # for people: nothing would be gained
    "cluster/explain/sentences.py",
    "cluster/feasibility.py",
    "cluster/explain/queries.py",
    "cluster/recovery.py",
    "cluster/trade.py",
}


def modules(package: Path) -> list[str]:
    """The modules of the package ``hived`` that are compiled, by their paths in it. O(files)."""
    found = [path for name in COMPILED for path in (package / name).rglob("*.py")]
    found += [package / name for name in COMPILED if name.endswith(".py")]
    names = {path.relative_to(package).as_posix() for path in found}
    if unknown := PLAIN - names:
        raise ValueError(f"PLAIN in {__file__} names what is no module: {', '.join(sorted(unknown))}")
    tests = {name for name in names if name.endswith("__init__.py") or "/checks/" in name}
    return sorted(names - PLAIN - tests)


def compile_in(folder: Path) -> list[Path]:
    """Compile the package ``hived`` in ``folder``; the extension modules made, below it. Raises what mypyc exits with.

    Two minutes or so.
    """
    options = ["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--config-file="]
    names = [f"hived/{name}" for name in modules(folder / "hived")]
    subprocess.run([sys.executable, "-m", "mypyc", *options, *names], cwd=folder, check=True)
    return sorted({*folder.glob("*__mypyc.*"), *(folder / "hived").rglob("*.so")})


class CompiledWheel(BuildHookInterface[BuilderConfig]):
    """Adds the extension modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the results to the wheel."""
        if version == "editable":
            return
        self._kept = tempfile.TemporaryDirectory()  # until the wheel is written
        folder = Path(self._kept.name)
        shutil.copytree(Path(self.root, "src", "hived"), folder / "hived")
        build_data["force_include"] |= {str(path): str(path.relative_to(folder)) for path in compile_in(folder)}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
