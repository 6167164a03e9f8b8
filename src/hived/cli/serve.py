"""``hived serve kubernetes``: the service that decides for a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hived.errors import InputError
from hived.events.file import LogFile
from hived.exchange import ArbiterKind, make_arbiter
from hived.installed import command_for

from .addresses import address, text_of

#: packages that a plain install lacks
_EXTRA = ("kubernetes_asyncio", "aiohttp", "prometheus_client")
_spec = partial(typer.Option, rich_help_panel="The spec")
_listener = partial(typer.Option, rich_help_panel="The listener")
_replicas = partial(typer.Option, rich_help_panel="Several replicas")
_trades = partial(typer.Option, rich_help_panel="Trades of cells")
_accounts = partial(typer.Option, rich_help_panel="Accounts of GPU hours")
_wait = partial(typer.Option, metavar="SECONDS", min=0.0, max=3600.0)


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


def kubernetes(
    spec: Annotated[
        Path | None, _spec(help="The cluster spec, a file; a new content is used without a restart.")
    ] = None,
    spec_configmap: Annotated[
        str | None, _spec(metavar="NS/NAME", help="The cluster spec, a ConfigMap with the key spec.yaml, watched.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="How to reach Kubernetes.", show_default="KUBECONFIG, the pod's own account, or ~/.kube/config"
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Of the kubeconfig.", show_default="its current one")] = None,
    listen: Annotated[str, _listener(metavar="HOST:PORT", help="Where to answer.")] = "127.0.0.1:9096",
    host: Annotated[
        list[str] | None,
        _listener(
            metavar="NAME",
            help="A name that browsers may call it by, beside localhost and its address; again for more.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        _listener(
            help="Holds the token for dashboard and API; without, they are open and nothing can be changed by them."
        ),
    ] = None,
    review_tokens: Annotated[
        str | None,
        _listener(
            metavar="AUDIENCE",
            help="Know people by tokens of Kubernetes for this audience (kubectl create token --audience).",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, _listener(help="Answer over TLS, with this chain (PEM).")] = None,
    tls_key: Annotated[Path | None, _listener(help="Its key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, _listener(help="kube-scheduler has to show a certificate of this authority.")
    ] = None,
    leader_elect: Annotated[bool, _replicas("--leader-elect", help="One of several replicas decides.")] = False,
    lease: Annotated[str, _replicas(metavar="NS/NAME", help="The Lease that they agree by.")] = "hived/hived",
    identity: Annotated[
        str | None, _replicas(help="What this replica is called.", show_default="POD_NAME, or the host's")
    ] = None,
    exchange_configmap: Annotated[
        str | None,
        _trades(metavar="NS/NAME", help="Have virtual clusters trade cells; a ConfigMap in which trades are kept."),
    ] = None,
    accounts_configmap: Annotated[
        str | None,
        _accounts(
            metavar="NS/NAME",
            help="Keep accounts for hived usage: a ConfigMap, and beside it up to 12 of its name and a number.",
        ),
    ] = None,
    exchange: Annotated[
        ArbiterKind, _trades(help="How offers of cells are matched with requests: see docs/explanation/exchange.md.")
    ] = ArbiterKind.BALANCED,
    evict_after: Annotated[
        float, _wait(help="How long kube-scheduler has for deleting victims before it is done here.")
    ] = 0.0,
    evict_patience: Annotated[
        float,
        _wait(help="How long a disruption budget may hold up the eviction of a victim; then its pod is deleted."),
    ] = 30.0,
    log_format: Annotated[LogFormat, typer.Option(help="The log, on standard error.")] = LogFormat.TEXT,
    event_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write every decision to the end of this file, a line of JSON each, for hived sim replay; - for "
            "standard output.",
        ),
    ] = None,
) -> None:
    """Answer kube-scheduler: where pods go, who waits and why, who has to go.

    Nothing is stored but trades and accounts: where everybody is, is read from the annotations of bound pods, at every
    start.

    \b
    Examples:
      hived serve kubernetes --spec spec.yaml
      hived serve kubernetes --spec-configmap hived/hived-spec --leader-elect --log-format json
    """
    where = address(listen)
    if (spec is None) is (spec_configmap is None):
        raise InputError("give the spec: either --spec FILE or --spec-configmap NAMESPACE/NAME")
    config_map = _pair("--spec-configmap", spec_configmap) if spec_configmap is not None else None
    lease_name = _pair("--lease", lease)
    trades = _pair("--exchange-configmap", exchange_configmap) if exchange_configmap is not None else None
    if trades is not None and trades == config_map:
        raise InputError("--exchange-configmap and --spec-configmap: the spec is kept apart from trades; give another")
    accounts = _pair("--accounts-configmap", accounts_configmap) if accounts_configmap is not None else None
    if accounts is not None and accounts in (trades, config_map):
        raise InputError("--accounts-configmap: accounts are kept apart from the spec and from trades; give another")
    token = _token(token_file) if token_file is not None else None
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    try:
        from hived.engines.kubernetes.engine import Engine
        from hived.engines.kubernetes.logs import set_up_logs

        from .serving import Serving  # its imports come with the extra, and are slow
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise InputError(f"{error.name} is not installed: {command_for('kubernetes')}") from None
    set_up_logs(log_format.value)
    log = None if event_log is None else LogFile(event_log, logging.getLogger("hived.kubernetes").warning)
    name = identity or os.environ.get("POD_NAME") or socket.gethostname()
    engine = partial(
        Engine,
        evict_after=evict_after,
        evict_patience=evict_patience,
        event_log=log,
        arbiter=make_arbiter(exchange.value),
        accounts_in=accounts,
    )
    run = Serving(
        spec, config_map, kubeconfig, context, where, host or [], token, tls, engine, name, trades, review_tokens
    )
    asyncio.run(run.run(lease_name if leader_elect else None, tls_client_ca is not None))


def _pair(option: str, text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise InputError(f"{option} {text}: give namespace and name, for example hived/hived-spec")
    return namespace, name


def _token(file: Path) -> str:
    token = text_of(file, f"--token-file {file}", "ascii", "is not ASCII text")
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise InputError(
            f"--token-file {file}: one word of at least 16 characters, for example of `openssl rand -hex 32`"
        )
    return token


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or client_ca is not None:
            raise InputError("--tls-key and --tls-client-ca go with --tls-cert")
        return None
    if key is None:
        raise InputError("--tls-cert needs its --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # probes have none; kube-scheduler must
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"--tls-cert {cert}, --tls-key {key}: cannot be used: {error}") from None
    return context
