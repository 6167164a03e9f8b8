"""Imported first by training scripts of these tests: PyTorch, in half the time that it takes to import.

The compiler, which the first step of an optimizer loads, is left out, and no garbage is looked for meanwhile. Scripts
of others, in ``scripts``, know nothing of this: they have PyTorch as it is.
"""

# mypy: ignore-errors

import gc
import sys
import types

gc.disable()
import torch  # noqa: E402

gc.enable()
compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function=None, recursive=True, **_: function
compiler.graph_break = lambda *_, **__: None
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = compiler
