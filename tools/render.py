"""Renders the chart to ``deploy/kubernetes/hived.yaml``, the manifests that are applied without Helm.

    python -m tools.render                                       after a change of the chart
    python -m tools.render --output dist/hived.yaml --set image.repository=registry.example/hived

The first lines of the file have a digest of what it was rendered from, so that a file that is out of date is seen where
there is no helm.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .go_tools import NoProgramError, program

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "helm" / "hived"
VALUES = DEPLOY / "kubernetes" / "values.yaml"
MANIFESTS = DEPLOY / "kubernetes" / "hived.yaml"
#: helm wants to know one; nothing in the chart depends on it
KUBERNETES = "1.36.0"


class ChartError(Exception):
    """helm refuses values, or the chart. The message is what it says."""


def helm(*arguments: str) -> str:
    """The output of a command of helm. Raises :class:`ChartError`, :class:`NoProgramError`."""
    ran = subprocess.run([program("helm"), *arguments], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ChartError(ran.stderr.strip())
    return ran.stdout


def template(*options: str, release: str = "hived") -> str:
    """The objects that a release comes to, in the namespace ``hived``; ``options`` are those of ``helm template``."""
    return helm("template", release, str(CHART), "--namespace=hived", f"--kube-version={KUBERNETES}", *options)


def rendered(*options: str) -> str:
    """The manifests, with lines about where they come from."""
    return head() + template(f"--values={VALUES}", *options)


def head() -> str:
    """The first lines of the manifests."""
    digest = hashlib.sha256()
    for path in [VALUES, *sorted(path for path in CHART.rglob("*") if path.is_file())]:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(DEPLOY).as_posix()} {len(content)}\n".encode() + content)
    return f"""# Generated from deploy/helm/hived: change the chart, and run `python -m tools.render`.
# sha256 of the chart and of values.yaml: {digest.hexdigest()}
"""


def main(arguments: Sequence[str]) -> None:
    """Write the file; what is not ours goes to helm."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.render",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", type=Path, default=MANIFESTS, help="the file that is written")
    ours, options = parser.parse_known_args(arguments)
    try:
        ours.output.write_text(rendered(*options), encoding="utf-8")
    except (ChartError, NoProgramError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
