"""What ``from hived import ...`` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hived


@pytest.mark.parametrize("name", hived.__all__)
def test_every_name_that_the_package_has_can_be_had(name: str) -> None:
    assert getattr(hived, name) is not None


def test_a_name_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        hived.Clutser  # noqa: B018


def test_the_package_by_itself_loads_nothing() -> None:
    code = "import sys, hived; print([name for name in sys.modules if name.startswith(('hived.', 'pydantic', 'yaml'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
