"""The files of a simulation: tables, ``cluster.json``, ``summary.json``, their checksums, figures.

They are written beside the target folder and moved into it when complete, so that it never has partial results. The
same spec, trace, options and version give the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from hived.cluster.sharing import Sharing
from hived.errors import InputError
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualClusterSpec

from .experiment import Results
from .report import Report

#: files of every folder of results
FILES = ("jobs.csv", "runs.csv", "cluster.json", "series.csv", "summary.json")
#: tables written on request, as the CSV files of their names
PARQUET = ("jobs.parquet", "runs.parquet")
#: the trades of cells, where tenants trade
TRADES = "trades.csv"
#: the parameters, as a file that ``hived simulate --scenario`` reads; none where they are objects of Python
SCENARIO = "scenario.yaml"
#: figures, one per policy, whose name follows
FIGURES = ("queueing-delay-over-time", "delay-normalised-to-private")
#: in the format of ``sha256sum --check``
CHECKSUMS = "SHA256SUMS"
#: patterns of all output files, figures included
_OUTPUTS = (
    *FILES,
    CHECKSUMS,
    SCENARIO,
    TRADES,
    *PARQUET,
    *(f"{name}-*.{end}" for name in FIGURES for end in ("png", "svg")),
)
TRADE_COLUMNS = (
    "policy", "giver", "taker", "chain", "level", "number", "start_s", "end_s", "gpu_hours", "price",
)  # fmt: skip


def check_output(folder: Path, overwrite: bool) -> None:
    """Raise :class:`~hived.errors.InputError` unless results can be written to ``folder``; called before a long run."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder for results; choose another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise InputError(
                f"{folder}: is not empty, and results are never mixed; choose another --out, or give --overwrite"
            )
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise InputError(
                f"{folder}: holds no earlier results that --overwrite could replace ({', '.join(missing)} not there); "
                "choose another --out"
            )
    parent = next(p for p in (folder, *folder.parents) if p.exists())
    if not parent.is_dir():
        raise InputError(f"{parent}: is a file, so {folder} cannot be made; choose another --out")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise InputError(f"{parent}: cannot be written to ({error.strerror}); choose another --out") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A draft folder whose files replace those of ``folder`` when the block succeeds; deleted if it fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    try:
        yield draft
        folder.mkdir(exist_ok=True)
        for pattern in _OUTPUTS:  # older results are removed, any other file stays
            for old in folder.glob(pattern):
                old.unlink()
        for file in sorted(draft.iterdir()):
            file.replace(folder / file.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """A table as CSV, null as nothing.

    A number that may have decimals always has them, so that Polars, which infers the types of columns from the first
    100 rows, and pandas read the files with their defaults. Times of an unfinished job give no type:
    docs/reference/results.md shows how to read a file that begins with 100 such rows.
    """
    with path.open("wb") as file:  # Polars opens no path that is no text
        table.write_csv(file, line_terminator="\n")


def write_trades(results: Results, path: Path) -> None:
    """Write every trade: the cells, from whom to whom, when, and for how many GPU hours."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("policy", "giver", "taker", "chain", "level", "number", "start_s", "end_s", "gpu_hours", "price")
        )
        for record in results.records:
            for trade in record.trades:
                cells = trade.cells
                writer.writerow(
                    (record.policy, trade.giver, trade.taker, cells.chain, cells.level, cells.number,
                     f"{trade.start:g}", f"{trade.end:g}", f"{trade.gpu_hours:g}", f"{trade.price:g}")
                )  # fmt: skip


def write_cluster(results: Results, path: Path) -> None:
    """``cluster.json``: the VCs' reservations and the chains of every scheme's cluster, nodes named as in ``runs.csv``.

    ``levels`` go from the leaf to the top, and ``node_level`` counts them from 1. All cells of a level are equal: cell
    ``i`` has the leaves ``i * gpus`` to ``(i + 1) * gpus - 1`` of its chain. ``devices`` has the device indices of the
    nodes (by number) where they are not 0, 1, 2, ... O(nodes).
    """
    spec = results.spec
    schemes = {record.scheme: chains_of(spec, record.scheme) for record in results.records}
    plain_vcs = [_virtual_cluster(spec, vc) for vc in spec.virtual_clusters]
    text = json.dumps({"virtual_clusters": plain_vcs, "schemes": schemes}, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def chains_of(spec: ClusterSpec, scheme: str) -> list[dict[str, Any]]:
    """The chains of a scheme's cluster, as in ``cluster.json``."""
    if scheme == Sharing.PRIVATE:
        return _private_chains(spec)
    shared = [_chain(chain.name, chain, len(chain.levels), chain.node_names) for chain in spec.chains]
    for plain, chain in zip(shared, spec.chains, strict=True):
        plain["devices"] = {str(node): list(devices) for node, devices in sorted(chain.device_indices.items())}
    return shared


def _chain(name: str, chain: ChainSpec, top: int, nodes: Sequence[str]) -> dict[str, Any]:
    """The levels of ``chain`` up to ``top``; a top cell below node level counts as a node."""
    return {
        "name": name,
        "levels": [{"cell_type": level.cell_type, "gpus": level.gpus} for level in chain.levels[:top]],
        "node_level": min(top, chain.node_level),
        "nodes": list(nodes),
        "devices": {},
    }


def _private_chains(spec: ClusterSpec) -> list[dict[str, Any]]:
    """A chain per tenant and kind of reserved cell, in the order in which its nodes are numbered."""
    chains = []
    for vc in spec.virtual_clusters:
        first = 0
        for chain in spec.chains:
            # consecutive cells of one level form one chain
            cells = [(c.level, c.number) for c in vc.cells if c.chain == chain.name]
            for level, of_level in groupby(cells, key=itemgetter(0)):
                size = max(1, chain.levels[level - 1].gpus // chain.gpus_per_node)
                hosts = sum(number for _, number in of_level) * size
                nodes = [f"{vc.name}-node-{first + host}" for host in range(hosts)]
                chains.append(_chain(f"{vc.name} {chain.levels[level - 1].cell_type}", chain, level, nodes))
                first += hosts
    return chains


def _virtual_cluster(spec: ClusterSpec, vc: VirtualClusterSpec) -> dict[str, object]:
    """A VC and its reserved cells; ``chain`` is the number of a chain of the shared cluster."""
    numbers = {chain.name: number for number, chain in enumerate(spec.chains)}
    kinds = [(cells.chain, cells.level, cells.number, None) for cells in vc.cells]
    reserved = []
    for name, level, number, pinned in (*kinds, *((pin.chain, pin.level, 1, pin.pinned_cell_id) for pin in vc.pinned)):
        levels = spec.chain(name).levels
        reserved.append(
            {
                "chain": numbers[name],
                "cell_type": ".".join(of.cell_type for of in reversed(levels[level - 1 :])),
                "gpus": levels[level - 1].gpus,
                "number": number,
                "pinned": pinned,
            }
        )
    return {"name": vc.name, "reserved": reserved}


def write_summary(report: Report, path: Path) -> None:
    """``summary.json``: the report's numbers, null for undefined ones."""
    text = json.dumps(_plain(report.to_json()), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def checksums(folder: Path) -> str:
    """The content of ``SHA256SUMS``: the SHA-256 and name of each file, a line each. O(bytes)."""
    lines = []
    for name in FILES:
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def _plain(value: object) -> object:
    """Round numbers to 6 decimals, NaN and infinity to null."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
