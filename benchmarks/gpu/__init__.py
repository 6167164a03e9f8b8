"""The runs that need a GPU: ``python3 -m benchmarks.gpu.memory``, ``.sharing`` and ``.checkpoint``.

Started in the repository's folder, each takes less than ten minutes on one GPU, and needs torch and numpy alone: the
package is taken from the checkout. docs/reference/gpu-results.md says what they measure.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")
if _SOURCE not in sys.path:
    sys.path.insert(0, _SOURCE)
