"""Conversion of quotas in percent to a spec: whole nodes per tenant, and the YAML."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path

import yaml

from hived.errors import InputError

from .document import did_you_mean, shown
from .hierarchy import MAX_NODE_GPUS
from .model import MAX_CELLS

#: (tenant, percent of the cluster) in the order of the file
Quotas = Sequence[tuple[str, Decimal | float]]

#: rounded percentages may not sum to exactly 100: between these bounds they mean the whole cluster
_WHOLE = (Fraction("99.5"), Fraction("100.5"))

_TENANT, _QUOTA = "tenant", "quota_pct"


def read_quotas(path: str | Path) -> tuple[tuple[str, Decimal], ...]:
    """The quotas in a CSV file with columns ``tenant`` and ``quota_pct``; other columns are ignored.

    A row whose tenant is ``total`` is skipped. Raises :class:`InputError` with file and row (the line, the header being
    1): no such column, no number, negative, a tenant twice, more than 100.5 % in all.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _checked(_rows(file, str(path)), str(path))
    except OSError as error:
        message = f"{path}: cannot read the quotas: {error.strerror or error}; give the path of a CSV file"
        raise InputError(message) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a UTF-8 text; save the quotas as UTF-8") from error


def _rows(file: Iterable[str], source: str) -> list[tuple[str, str, Decimal]]:
    """Per row: its place, the tenant, the percent."""
    reader = csv.DictReader(file)
    rows = []
    try:
        columns = reader.fieldnames or ()
        for wanted in (_TENANT, _QUOTA):
            if wanted not in columns:
                raise InputError(f"{source}:1: no column `{wanted}`{_header_hint(wanted, columns)}")
        for row in reader:
            where = f"{source}:{reader.line_num}"
            tenant = (row[_TENANT] or "").strip()
            if tenant != "total":
                rows.append((where, tenant, _percent(row[_QUOTA], where)))
    except csv.Error as error:
        raise InputError(f"{source}:{reader.line_num + 1}: not a CSV file: {error}") from error
    return rows


def _header_hint(wanted: str, columns: Sequence[str]) -> str:
    if not columns:
        return "; the file is empty"
    close = did_you_mean(wanted, columns)
    return f"; the columns are {', '.join(map(shown, columns))}{close}"


def _percent(text: str | None, where: str) -> Decimal:
    try:
        return Decimal((text or "").strip())
    except InvalidOperation:
        raise InputError(f"{where}: {_QUOTA} `{shown(text or '')}` is not a number of percent like 8.79") from None


def _checked(rows: Iterable[tuple[str, str, Decimal]], source: str) -> tuple[tuple[str, Decimal], ...]:
    """The quotas in ``rows``, checked one by one and in sum."""
    quotas: dict[str, Decimal] = {}
    for where, tenant, percent in rows:
        if not tenant or not tenant.isprintable():
            raise InputError(f"{where}: a tenant needs a name of printable characters, not `{shown(tenant)}`")
        if tenant in quotas:
            raise InputError(f"{where}: tenant `{shown(tenant)}` is given twice; one quota for each")
        if not percent.is_finite() or percent < 0 or percent > _WHOLE[1]:
            raise InputError(f"{where}: the quota of `{shown(tenant)}` is {percent}; it must be from 0 to 100 percent")
        quotas[tenant] = percent
    if not quotas:
        raise InputError(f"{source}: no tenant in it; at least one is needed")
    total = sum(quotas.values())
    if total > _WHOLE[1]:
        raise InputError(f"{source}: the quotas sum to {total} percent, {total - 100} too much; lower some")
    return tuple(quotas.items())


def spec_from_quotas(nodes: int, quotas: Quotas, *, gpus_per_node: int = 8) -> str:
    """A spec, as YAML text, of ``nodes`` equal nodes shared by ``quotas`` (percent of the nodes) in whole nodes.

    A node holds ``gpus_per_node`` GPUs (a power of two) in halves: GPU, GPU-PAIR, ..., SOCKET, NODE. For the shares see
    :func:`share_nodes`. Raises :class:`InputError`: quotas unsound in themselves, more tenants than nodes.
    O(tenants squared); the text does not grow with the nodes.
    """
    check_nodes(nodes, gpus_per_node)
    checked = check_quotas(quotas)
    shares = share_nodes(nodes, checked)
    data = {
        "physicalCluster": equal_nodes(nodes, gpus_per_node),
        "virtualClusters": {
            tenant: {"virtualCells": [{"cellType": "NODE", "cellNumber": share}]}
            for (tenant, _), share in zip(checked, shares, strict=True)
        },
    }
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return _header(nodes, gpus_per_node, checked, shares) + body


def check_nodes(nodes: int, gpus_per_node: int) -> None:
    """Raise :class:`InputError` unless there can be so many nodes of so many GPUs."""
    if not 1 <= nodes <= MAX_CELLS:
        raise InputError(f"{nodes} nodes: a cluster has 1 to {MAX_CELLS:,}")
    if gpus_per_node < 1 or gpus_per_node & (gpus_per_node - 1) or gpus_per_node > MAX_NODE_GPUS:
        raise InputError(f"{gpus_per_node} GPUs a node: it must be a power of two, {MAX_NODE_GPUS} at most")


def check_quotas(quotas: Quotas) -> tuple[tuple[str, Decimal], ...]:
    """The quotas with exact percentages. Raises :class:`InputError` for unsound ones."""
    return _checked(((_place(n), tenant, _decimal(q)) for n, (tenant, q) in enumerate(quotas, 1)), "quotas")


def equal_nodes(nodes: int, gpus_per_node: int) -> dict[str, object]:
    """The ``physicalCluster`` of a spec, as plain data: equal nodes, each halved down to its GPUs.

    Cell types are ``NODE``, ``SOCKET``, ..., ``GPU-PAIR``, ``GPU``. ``gpus_per_node``: a power of two. O(log GPUs).
    """
    width = len(str(nodes - 1))
    address = f"node-[{0:0{width}}-{nodes - 1}]" if nodes > 1 else "node-0"
    return {
        "cellTypes": _node_types(gpus_per_node),
        "physicalCells": [{"cellType": "NODE", "cellAddress": address}],
    }


def share_nodes(nodes: int, quotas: Sequence[tuple[str, Decimal]]) -> tuple[int, ...]:
    """Whole nodes for each quota, in order: largest remainder (Hamilton), and at least 1 per tenant.

    Percentages that sum to less than 99.5 leave the rest of the nodes spare; otherwise all nodes are shared. A tenant
    that would get none gets 1, and the others share the remaining nodes by the same rule. Ties of remainders are broken
    by the order given. Raises :class:`InputError` if there are more quotas than nodes.
    """
    if len(quotas) > nodes:
        raise InputError(f"{len(quotas)} tenants for {nodes} nodes, and each gets at least one: add nodes")
    percents = [Fraction(percent) for _, percent in quotas]
    total = sum(percents)
    seats = nodes if total >= _WHOLE[0] else max(int(nodes * total / 100), len(quotas))
    return share_out(seats, percents, [1] * len(quotas))


def share_out(seats: int, weights: Sequence[Fraction | int], least: Sequence[int]) -> tuple[int, ...]:
    """``seats`` by ``weights`` and largest remainder, and to each at least its ``least``; there are seats for that.

    Whose share is less than its least gets that, and the others share the rest by the same rule. O(n squared).
    """
    shares = list(least)
    left = list(range(len(weights)))  # those that share the remaining seats
    while left:
        found = dict(zip(left, largest_remainder(seats, [weights[i] for i in left]), strict=True))
        short = [i for i in left if found[i] < least[i]]
        if not short:
            for i, share in found.items():
                shares[i] = share
            break
        seats -= sum(least[i] for i in short)
        left = [i for i in left if found[i] >= least[i]]
    return tuple(shares)


def largest_remainder(seats: int, weights: Sequence[Fraction | int]) -> list[int]:
    """``seats`` in proportion to ``weights`` (Hamilton); ties of remainders are broken by the order given."""
    total = sum(weights) or Fraction(1)
    exact = [Fraction(seats * weight) / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: seats - sum(shares)]:
        shares[i] += 1
    return shares


def _node_types(gpus: int) -> dict[str, dict[str, object]]:
    """Cell types of a node that is halved down to its GPUs, lowest first."""
    types: dict[str, dict[str, object]] = {}
    child, size = "GPU", 1
    while 2 * size < gpus:
        size *= 2
        name = "GPU-PAIR" if size == 2 else "SOCKET" if 2 * size == gpus else f"{size}-GPU"
        types[name] = {"childCellType": child, "childCellNumber": 2}
        child = name
    types["NODE"] = {"childCellType": child, "childCellNumber": min(gpus, 2), "isNodeLevel": True}
    return types


def _header(nodes: int, gpus: int, quotas: Sequence[tuple[str, Decimal]], shares: Sequence[int]) -> str:
    total = sum(percent for _, percent in quotas)
    lines = [
        f"{nodes} nodes of {gpus} GPUs, shared in whole nodes by quota (percent of the nodes, {total:f} in all):",
        "largest remainder, at least 1 node for every tenant, ties in the order given; "
        f"spare nodes: {nodes - sum(shares)}.",
        "",
        *(f"  {tenant}: {percent:f} % = {share}" for (tenant, percent), share in zip(quotas, shares, strict=True)),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _place(number: int) -> str:
    return f"quota {number}"


def _decimal(percent: Decimal | float) -> Decimal:
    # a float is read as the decimal that it prints as: 0.37, not its binary approximation
    return percent if isinstance(percent, Decimal) else Decimal(repr(float(percent)))
