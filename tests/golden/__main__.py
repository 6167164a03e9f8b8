"""``python -m tests.golden check | record | write FOLDER``: see the package."""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from .cases import HERE, generated, philly

HASHES = HERE / "hashes.json"


def results(folder: Path) -> dict[str, str]:
    """The hashes of all files of results; the files lie below ``folder``."""
    found: dict[str, str] = {}
    with ProcessPoolExecutor() as pool:  # the longest first
        parts = [
            pool.submit(each.write, options, folder) for each in [*philly(), *generated()] for options in each.options()
        ]
        for part in as_completed(parts):
            found |= part.result()
            print(f"{next(iter(part.result())).rpartition('/')[0]}: {len(found)} files", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Exit status 1 where results differ from the expected ones."""
    match arguments:
        case ["write", folder]:
            results(Path(folder))
            return 0
        case ["check" | "record" as what]:
            with tempfile.TemporaryDirectory() as folder:
                found = results(Path(folder))
        case _:
            print(__doc__)
            return 2
    expected: dict[str, str] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    if what == "record":
        HASHES.write_text(json.dumps(expected | found, indent=0, sort_keys=True) + "\n")
        return 0
    different = [name for name in found if found[name] != expected.get(name)]
    print("\n".join([f"different: {name}" for name in different]) or f"all {len(found)} files are as expected")
    return 1 if different else 0


if __name__ == "__main__":  # and not in its processes, where they are not forked
    sys.exit(main(sys.argv[1:]))
