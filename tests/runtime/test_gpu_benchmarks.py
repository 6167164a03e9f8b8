"""The runs that need a GPU, without one: every planned row is there, and their own parts are right.

No figure of a run on the CPU is a result, and none is looked at here; only whether weights are equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import checkpoint, cuda, memory, models, sharing
from benchmarks.gpu.harness import CPU_WARNING, Status

ROOT = Path(__file__).parents[2]
RUNS = {"memory": memory.MEASUREMENTS, "sharing": sharing.MEASUREMENTS, "checkpoint": checkpoint.MEASUREMENTS}


def started(name: str, out: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """One of the runs, as a user starts it."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}", "--out", str(out), *options]
    environment = {**os.environ, **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(run: subprocess.Popen[str], name: str, out: Path) -> tuple[str, dict[str, Any]]:
    """What a run has printed, and written."""
    printed, _ = run.communicate(timeout=600)
    assert run.returncode == 0, printed[-4000:]
    return printed, json.loads((out / f"{name}.json").read_text())


@pytest.mark.release
def test_each_planned_row_on_a_cpu(tmp_path: Path) -> None:
    running = {name: started(name, tmp_path / name, "--device", "cpu", "--quick") for name in RUNS}
    for name, run in running.items():
        printed, written = ended(run, name, tmp_path / name)
        assert CPU_WARNING in printed.splitlines()[1]
        assert {"date", "torch", "card"} <= written["about"].keys()
        assert list(written["figures"]) == [each.name for each in RUNS[name]]
        for measurement in RUNS[name]:
            figures = written["figures"][measurement.name]
            assert [each["row"]["key"] for each in figures] == [row.key for row in measurement.rows]
            for figure in figures:
                what = f"{measurement.name}, {figure['row']['key']}: {figure['note']}"
                assert figure["status"] in (Status.MEASURED, Status.NEEDS_GPU), what
                assert (figure["value"] is None) == (figure["status"] == Status.NEEDS_GPU), what
                assert not (measurement.gpu_only and figure["value"] is not None), what
                if "equal" in figure["row"]["key"] or "addresses" in figure["row"]["key"]:
                    assert figure["value"] in (True, None), what
        assert any(each["value"] is not None for rows in written["figures"].values() for each in rows)


def test_rows_without_a_gpu_say_why(tmp_path: Path) -> None:
    names = ("reads-host", "alive")
    run = started("memory", tmp_path, "--only", *names, CUDA_VISIBLE_DEVICES="")
    printed, written = ended(run, "memory", tmp_path)
    assert CPU_WARNING not in printed
    assert list(written["figures"]) == list(names)
    for figures in written["figures"].values():
        assert all(each["status"] == Status.FAILED and each["note"] for each in figures)
    assert "failed: exit code 1" in printed
    assert (tmp_path / "memory-alive.log").stat().st_size


def test_imports_of_the_runs() -> None:
    body = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(name)
NAMES = {"pydantic", "yaml", "typer", "rich", "fastapi", "uvicorn", "sse_starlette", "h11", "httpx", "msgspec",
         "pynvml", "starlette", "anyio", "hypothesis", "pytest", "matplotlib"}
sys.meta_path.insert(0, Absent())
import benchmarks.gpu.memory, benchmarks.gpu.sharing, benchmarks.gpu.checkpoint
assert "torch" not in sys.modules, "what commands jobs has no context on the GPU"
for name in [name for name in sys.modules if name.startswith(("hived", "benchmarks"))]:
    del sys.modules[name]
import benchmarks.gpu.training
assert not [name for name in sys.modules if name.startswith("hived")], "what checkpoints itself is a plain script"
import hived_runtime.process, hived_runtime.memory.paged, hived_runtime.moving.source, hived_runtime.moving.destination
"""
    environment = {**os.environ, "HIVED_RUNTIME": "off"}
    done = subprocess.run(
        [sys.executable, "-c", body], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "gigabytes"),
    [
        ("resnet50", 25_557_032, 0.3),  # the number of the paper's model: 25.6 M
        ("resnet50-cifar", 23_520_842, 0.28),
        ("vgg16-cifar", 14_728_266, 0.177),
        ("vae", 652_824, 0.0078),
        ("lm-117m", 117_702_912, 1.4),
        ("lm-475m", 475_402_752, 5.7),
        ("lm-1750m", 1_733_686_272, 21),
    ],
)
def test_model_sizes_are_the_targets(name: str, parameters: int, gigabytes: float) -> None:
    """Bytes are those of weights and of two moments."""
    with torch.device("meta"):
        assert models.parameters(models.MODELS[name].full()) == parameters
    assert 12 * parameters / 1e9 == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize("name", models.MODELS)
def test_model_learns_reproducibly(name: str) -> None:
    device = torch.device("cpu")
    sums = []
    for _ in range(2):
        task, optimizer = models.make(name, "tiny", device)
        before = models.checksum(models.state_tensors(task, optimizer))
        for step in range(2):
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(*task.batch(step, device))
            loss.backward()
            optimizer.step()
            assert loss.isfinite()
        sums.append(models.checksum(models.state_tensors(task, optimizer)))
        assert sums[-1] != before
    assert sums[0] == sums[1]


def test_transformer_texts_of_many_lengths() -> None:
    task = models.MODELS["lm-varying"].full
    with torch.device("meta"):
        lengths = {task().batch(step, torch.device("cpu"))[0].shape[1] - 1 for step in range(12)}
    assert len(lengths) > 8
    assert min(lengths) >= 16
    assert max(lengths) <= 128
    small = models.MODELS["lm-bursty"].tiny()
    assert isinstance(small, models.Transformer)
    text = torch.zeros(2, 7, dtype=torch.long)
    for _ in range(3):
        text = small.decode(text)
    assert text.shape == (2, 8), "not beyond its greatest length"


def test_checksum_sees_bits_and_places() -> None:
    tensor = torch.arange(1000.0)
    other = tensor.clone()
    other.view(torch.int32)[500] ^= 1
    swapped = tensor.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert len({models.checksum([each]) for each in (tensor, other, swapped)}) == 3
    assert models.checksum([tensor]) == models.checksum([tensor.clone()])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_reading_kernel_is_assembled(tmp_path: Path, architecture: str) -> None:
    places = (path for root in sys.path for path in Path(root).glob("triton/backends/nvidia/bin/ptxas"))
    assembler = shutil.which("ptxas") or next(places, None)
    if assembler is None:
        pytest.skip("no ptxas in this environment")
    (tmp_path / "reader.ptx").write_text(cuda.READER)
    command = [assembler, f"-arch={architecture}", tmp_path / "reader.ptx", "-o", tmp_path / "reader.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
