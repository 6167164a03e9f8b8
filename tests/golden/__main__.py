"""``python -m tests.golden``: see the package."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from hived import Cluster
from hived.events.replay import replay

from . import __doc__ as usage
from .cases import HASHES, Simulated, everything
from .walks import walks


def results(simulated: Sequence[Simulated], folder: Path) -> dict[str, str]:
    """The hashes of all files of results; the files lie below ``folder``."""
    found: dict[str, str] = {}
    with ProcessPoolExecutor() as pool:
        for part in as_completed([pool.submit(case.write, scenario, folder) for case, scenario in simulated]):
            found |= part.result()
            print(f"{next(iter(part.result())).rpartition('/')[0]}: {len(found)} files", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Exit status 1 where results differ from the expected ones."""
    match arguments:
        case ["write", folder]:
            results(everything(), Path(folder))
            return 0
        case ["check"] | ["record"]:
            simulated = everything()
        case _:
            print(usage)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        found = results(simulated, Path(folder))
    expected: dict[str, str] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    if arguments == ["record"]:
        HASHES.write_text(json.dumps(expected | found, indent=0, sort_keys=True) + "\n")
        return 0
    different = [name for name in found if found[name] != expected.get(name)]
    print("\n".join([f"different: {name}" for name in different]) or f"all {len(found)} files are as expected")
    kept = [replay(lines, Cluster) for lines in walks()]
    print(f"all {len(kept)} walks are as expected")
    return 1 if different else 0


if __name__ == "__main__":  # and not in its processes, where they are not forked
    sys.exit(main(sys.argv[1:]))
