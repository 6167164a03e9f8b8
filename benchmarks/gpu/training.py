"""An ordinary training script: ``python -m benchmarks.gpu.training MODEL ...``. It imports nothing of hived.

What it has done is in one file of JSON at its end: the span of each mini-batch (by ``time.monotonic``), checksums of
the state after given mini-batches, whether the addresses of the state are as they were after the second one.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import time
from pathlib import Path

import torch

from benchmarks.gpu.models import Task, Transformer, checksum, deterministic, make, state_tensors


def main() -> None:
    """Train as asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--size", default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--deterministic", action="store_true", help="equal runs give equal bits")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1 << 40, help="mini-batches, at most")
    parser.add_argument("--stop", type=Path, help="ends after the mini-batch in which this file appears")
    parser.add_argument("--record", default="", help="mini-batches, as 8,20, after which to take a checksum")
    parser.add_argument("--progress", type=Path, help="the number of mini-batches, 8 bytes, at every one")
    parser.add_argument("--save", type=Path, help="writes the state here at the end")
    parser.add_argument("--load", type=Path, help="begins with the state that was written there")
    parser.add_argument("--share-file", type=Path, help="a number of 8 bytes: sleeps at boundaries to have that share")
    parser.add_argument("--memory-fraction", type=float, help="of the device, for this process")
    parser.add_argument("--phases", default="", help="CPU seconds, mini-batches, words: in turns")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of sleep after every mini-batch")
    options = parser.parse_args()
    if options.deterministic:
        deterministic()
    torch.set_float32_matmul_precision("high")
    if options.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(options.memory_fraction)
    device = torch.device(options.device)
    task, optimizer = make(options.model, options.size, device)
    record = {int(each) for each in options.record.split(",") if each}
    spans: list[tuple[str, float, float]] = []  # what, from, until
    checksums: dict[int, str] = {}
    addresses: list[int] = []
    first = 0
    if options.load is not None:
        kept = torch.load(options.load, map_location=device)
        task.load_state_dict(kept["task"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["steps"]
    progress = None if options.progress is None else os.open(options.progress, os.O_CREAT | os.O_WRONLY, 0o600)
    cpu_s, in_turn, words = (float(each) for each in (options.phases or "0,0,0").split(","))
    for step in range(first, options.steps):
        if in_turn and (step - first) % int(in_turn) == 0:
            other_phases(spans, task, device, cpu_s, int(words))
        began = time.monotonic()
        batch = task.batch(step, device)
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(*batch)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device, as scripts that print the loss do
        ended = time.monotonic()
        spans.append(("train", began, ended))
        if options.share_file is not None:
            (share,) = struct.unpack("<d", options.share_file.read_bytes())
            if share < 1:
                time.sleep(min((ended - began) * (1 / share - 1), 1.0))
        if options.pause:
            time.sleep(options.pause)
        if progress is not None:
            os.pwrite(progress, struct.pack("<q", step + 1), 0)
        if step == first + 1:
            addresses = [each.data_ptr() for each in state_tensors(task, optimizer)]
        if step + 1 in record:
            checksums[step + 1] = checksum(state_tensors(task, optimizer))
        if options.stop is not None and options.stop.exists():
            break
    if options.save is not None:
        torch.save({"task": task.state_dict(), "optimizer": optimizer.state_dict(), "steps": step + 1}, options.save)
    checksums[step + 1] = checksum(state_tensors(task, optimizer))
    result = {
        "steps": step + 1,
        "spans": spans,
        "checksums": checksums,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
        "same_addresses": addresses == [each.data_ptr() for each in state_tensors(task, optimizer)],
    }
    draft = options.result.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(result))
    draft.rename(options.result)


def other_phases(
    spans: list[tuple[str, float, float]], task: Task, device: torch.device, cpu_s: float, words: int
) -> None:
    """Prepare data on the CPU for so long, and write so many words."""
    began = time.monotonic()
    total = 0
    while time.monotonic() < began + cpu_s:
        total += sum(range(1000))
    spans.append(("cpu", began, time.monotonic()))
    if not isinstance(task, Transformer):
        return
    text = task.batch(0, device)[0][:, :4]
    for _ in range(words):
        began = time.monotonic()
        text = task.decode(text)
        text[0, -1].item()
        spans.append(("decode", began, time.monotonic()))


if __name__ == "__main__":
    main()
