"""What the tests of the spec share: small specs, and where an error is expected."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from hived.errors import SpecError
from hived.spec import ClusterSpec, parse_spec

#: a rack of two nodes with two sockets of two GPUs
TYPES = """\
SOCKET:
  childCellType: GPU
  childCellNumber: 2
NODE:
  childCellType: SOCKET
  childCellNumber: 2
  isNodeLevel: true
RACK:
  childCellType: NODE
  childCellNumber: 2
"""

#: marks in a spec's text the end of the line that an error must name
HERE = "#!"


def spec_text(cells: str = "- cellType: RACK", vcs: str = "{}", types: str = TYPES) -> str:
    """A spec with these blocks under ``cellTypes``, ``physicalCells`` and ``virtualClusters``."""
    return "\n".join(
        [
            "physicalCluster:",
            "  cellTypes:",
            indent(dedent(types).strip(), "    "),
            "  physicalCells:",
            indent(dedent(cells).strip(), "  "),
            "virtualClusters:",
            indent(dedent(vcs).strip(), "  "),
            "",
        ]
    )


def compiled(cells: str = "- cellType: RACK", vcs: str = "{}", types: str = TYPES) -> ClusterSpec:
    """The spec of :func:`spec_text`, compiled."""
    return parse_spec(spec_text(cells, vcs, types), "spec.yaml")


def error_in(text: str) -> str:
    """The message that parsing ``text`` gives, less ``spec.yaml:N: ``, after checking N against the marked line."""
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "spec.yaml")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if HERE in line)
    prefix = f"spec.yaml:{line}: "
    message = str(caught.value)
    assert message.startswith(prefix), message
    assert caught.value.where is not None
    assert caught.value.where.line == line
    return message.removeprefix(prefix)


def error_of(cells: str = "- cellType: RACK", vcs: str = "{}", types: str = TYPES) -> str:
    """The message for the spec of :func:`spec_text`, see :func:`error_in`."""
    return error_in(spec_text(cells, vcs, types))
