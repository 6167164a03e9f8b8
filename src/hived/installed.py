"""This installation of hived: its version, compiled or not, and the command that adds an extra."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: of this package; `hived` in the public index is another project's
DISTRIBUTION = "hived-scheduler"
#: the one of the extra `train`, and its folder in the repository: of the same version, and from the same source
RUNTIME, RUNTIME_FOLDER = "hived-runtime", "packages/hived-runtime"

try:
    __version__ = distribution(DISTRIBUTION).version  #: which the build took from the tag
except PackageNotFoundError:  # a checkout on the path
    __version__ = "0.0"


def form() -> str:
    """``compiled`` if the core is native code (``tools/compiled_wheel.py``), else ``plain Python``."""
    cells = Path(__file__).with_name("cells")
    return "compiled" if any((cells / f"buddy{suffix}").exists() for suffix in EXTENSION_SUFFIXES) else "plain Python"


def command_for(extra: str) -> str:
    """The command that adds an extra (``figures``, ``kubernetes``) to this installation, from the same source.

    That is a folder, a file, a repository, or, where pip wrote of none (PEP 610), the index under :data:`DISTRIBUTION`.
    The extra ``train`` is a distribution of its own, :data:`RUNTIME`, beside this one.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    runtime = extra == "train"
    named = RUNTIME if runtime else f"{DISTRIBUTION}[{extra}]"
    below = f"/{RUNTIME_FOLDER}" if runtime else f"[{extra}]"
    try:
        written = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"{pip} -e {shlex.quote(f'.{below}')} in the checkout of hived"
    if written is None:
        return f"{pip} {shlex.quote(f'{named}=={__version__}')}"
    source = json.loads(written)
    if "dir_info" in source:
        folder = shlex.quote(f"{unquote(urlsplit(source['url']).path)}{below}")
        return f"{pip} -e {folder}" if source["dir_info"].get("editable") else f"{pip} {folder}"
    vcs = source.get("vcs_info")
    url = source["url"] if vcs is None else f"{vcs['vcs']}+{source['url']}@{vcs['commit_id']}"
    if runtime and vcs is None:
        url = f"{url.rpartition('/')[0]}/{RUNTIME.replace('-', '_')}-{__version__}-py3-none-any.whl"
    elif runtime:
        url += f"#subdirectory={RUNTIME_FOLDER}"
    return f"{pip} {shlex.quote(f'{named} @ {url}')}"
