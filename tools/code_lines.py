"""Code lines per product and package: without blanks, comments and docstrings. ``python tools/code_lines.py [-f]``.

With ``-f`` those of each file too.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hived"
#: beside the wheel of hived: what a training image installs, and what is in no wheel
OTHERS = {"hived-runtime": ROOT / "packages" / "hived-runtime" / "src", "evaluation": ROOT / "evaluation"}
#: the deciding code: which group gets which leaf cells when
DECIDES = ("cells", "cluster", "scheduling")
#: of that, explanations and checks: no part of the figure of 6,013 that the size is measured against
APART = (
    "cluster/explain/",
    "cells/checks/",
    "cluster/checks/",
    "cluster/checked.py",
    "scheduling/checks/",
)
SHELL = ("engines", "server", "cli")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(text: str) -> int:
    """Lines of a module that hold code; every line of a statement counts that has some."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def counted(folder: Path) -> dict[Path, int]:
    """The code lines of every module below a folder."""
    return {path: code_lines(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


def main() -> None:
    """Print them."""
    files = counted(SOURCE)
    packages: dict[str, int] = {}
    apart = 0
    for path, lines in files.items():
        apart += lines if path.relative_to(SOURCE).as_posix().startswith(APART) else 0
        parts = path.relative_to(SOURCE).parts
        package = parts[0] if len(parts) > 1 else "."
        packages[package] = packages.get(package, 0) + lines
        if "-f" in sys.argv:
            print(f"{lines:6,}  {path.relative_to(SOURCE)}")
    for package, lines in sorted(packages.items()):
        print(f"{lines:6,}  {package}")
    decides = sum(packages.get(name, 0) for name in DECIDES)
    print(f"{decides:6,}  what decides ({', '.join(DECIDES)})")
    print(f"{decides - apart:6,}  of that without reasons, explanations and checks")
    print(f"{sum(packages.get(name, 0) for name in SHELL):6,}  the shell ({', '.join(SHELL)})")
    print(f"{sum(files.values()):6,}  the hived wheel")
    for product, folder in OTHERS.items():
        print(f"{sum(counted(folder).values()):6,}  {product}")


if __name__ == "__main__":
    main()
