"""Parts of the runtime, and of its benchmarks on a GPU, that need neither PyTorch nor a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import memory, sharing
from benchmarks.gpu.harness import Answers, Figure, Row, Settings, Status, _ended, quantile, shown

from hived_runtime.elasticity.watch import Watch
from hived_runtime.memory import pager
from hived_runtime.memory.pager import PagerUnavailable


def test_one_long_wait_ends_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(os, "_exit", done.append)
    watch = Watch(lambda: "worker 7 has ended", lambda: done.append("given up"))
    for _ in range(20):  # in each of these the process group has finished, whoever has died since
        with watch.waiting():
            for _ in range(4):
                watch.look()
        watch.look()
    assert not done
    with watch.waiting():
        for _ in range(10):
            watch.look()
    assert done == ["given up", 1]


def test_control_is_the_standard_library_and_starts_nothing() -> None:
    """A scheduler imports it, in a process that may have PyTorch, and is no training job."""
    code = """
import os, sys, threading, types
sys.modules["torch"] = torch = types.ModuleType("torch")
before, finders, environment = set(sys.modules), list(sys.meta_path), dict(os.environ)
import hived_control
from pkgutil import iter_modules
names = [each.name for each in iter_modules(hived_control.__path__)]
for name in names:
    __import__(f"hived_control.{name}")
assert {"commands", "page"} <= set(names)
others = {name.partition(".")[0] for name in set(sys.modules) - before} - {"hived_control"}
assert others <= sys.stdlib_module_names, others - sys.stdlib_module_names
assert (sys.meta_path, dict(os.environ), threading.active_count()) == (finders, environment, 1)
assert vars(torch).keys() == vars(types.ModuleType("torch")).keys()
"""
    job = {name: value for name, value in os.environ.items() if name != "HIVED_RUNTIME"}
    ran = subprocess.run([sys.executable, "-c", code], env=job, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


# -- the pager --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("", r"no C\+\+ compiler: .*install g\+\+"),
        ("no-such-compiler", "no-such-compiler not found"),
        ("/bin/false", "cannot compile the pager"),
    ],
)
def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(PagerUnavailable, match=why):
        pager.build()
    assert not list(tmp_path.glob("hived/*")), "nothing is left"


def test_cache_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PagerUnavailable, match="no cache folder"):
        pager.build()


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"}, "expandable_segments"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:true"}, "expandable_segments"),
        ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, "cudaMallocAsync"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        ({"PYTORCH_ALLOC_CONF": "backend:native,expandable_segments:False,roundup_power2_divisions:[256:1]"}, None),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, None),
        ({}, None),
    ],
)
def test_bypassing_settings_are_named(environ: dict[str, str], word: str | None) -> None:
    said = pager.unsupported(environ)
    assert said is None if word is None else word in (said or "")


# -- benchmarks -------------------------------------------------------------------------------------------------------


def test_lowest_point_of_a_trace() -> None:
    events = [("alloc", 5), ("free_requested", 12), ("free_completed", 12), ("segment_free", 9), ("alloc", 20)]
    assert memory.lowest(10, events) == 3
    assert memory.lowest(10, []) == 10


def test_share_rises_slowly_falls_quickly() -> None:
    feedback = sharing.Feedback(usual_s=0.1, share=0.5)
    assert [round(feedback.heard(each), 3) for each in (0.1, 0.104, 0.106)] == [0.52, 0.54, 0.324]
    assert min(feedback.heard(0.5) for _ in range(20)) == 0.02
    assert max(feedback.heard(0.1) for _ in range(100)) == 1.0


def test_output_before_a_crash_is_kept(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "answers")
    answers.put("first", 1.5)
    with answers.part("first", "second"):
        raise ValueError("no room")
    with (tmp_path / "answers").open("a") as file:
        file.write('{"key": "third", "val')
    found = {each["key"]: each for each in answers.read()}
    assert found["first"]["value"] == 1.5
    assert found["second"]["note"] == "ValueError: no room"
    assert "third" not in found
    assert _ended(-11) == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("status", "value", "text"),
    [
        (Status.MEASURED, 12345.6, "12,346 ms"),
        (Status.MEASURED, 0.01234, "0.0123 ms"),
        (Status.MEASURED, False, "no"),
        (Status.FAILED, None, "failed: why"),
        (Status.NEEDS_GPU, None, "needs a GPU"),
    ],
)
def test_row_as_shown(status: Status, value: float | bool | None, text: str) -> None:
    assert shown(Figure(Row("key", "what", "ms"), status, value, "why")) == text


def test_size_of_a_measurement() -> None:
    sizes = [Settings(device, quick, "", "", 0.0).size for device in ("cuda", "cpu") for quick in (False, True)]
    assert sizes == ["full", "quick", "tiny", "tiny"]
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
