"""``hived up``: the engine of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from hived.cluster import check_feasible
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobState
from hived.engines.local import demo
from hived.engines.local.devices import Devices, Simulated, find_gpus, spec_for, this_node
from hived.engines.local.engine import Engine, Keeping, displaced_by
from hived.engines.local.fences import Fence
from hived.engines.local.job_users import JobUsers, name_of, not_passable, unknown_accounts
from hived.engines.local.ownership import jobs_folder, take_over
from hived.engines.local.stopping import stop_engine
from hived.engines.local.store import Shares, Store, last_start
from hived.engines.local.supervisor import world
from hived.errors import HivedError, InputError, PolicyError, StorageError
from hived.exchange import ArbiterKind, make_arbiter
from hived.policies import AntMan, by_vc, make_policy, split_policy
from hived.server.app import make_app
from hived.server.dashboard import Source
from hived.server.guard import looking
from hived.server.local_service import LocalService, local_view
from hived.server.serving import Server, let_in
from hived.spec import ClusterSpec, load_spec
from hived.spec.compiled import NO_GUESTS
from hived.words import counted

from .addresses import ANY, OF_THE_MACHINE, address, engine_folder, exit_signal, has_socket, link, state_folder, until
from .console import messages, outlive_a_full_disk, output
from .escaping import clean
from .formats import read_bytes, read_duration

#: the value of an option that is given up after earlier starts had one
_NONE = "none"
_STOPS_S = 60.0  #: how long an engine may take to end: a request that it carries out is ended first
#: loopback addresses
_HERE = ("127.0.0.1", "::1", "localhost")
_ON_THE_NETWORK = "anybody on the network can read the token as it passes: it is plain HTTP; an SSH tunnel is safer"
#: the engine's limit of open files, where the system allows it
_MOST_FILES = 65_536
#: bytes that --most-output leaves at least
_LEAST_OUTPUT = 1 << 20
#: address of the demo's dashboard, if that port is free
_DEMO_PORT = 8765
#: maximum of running jobs named before they lose their cells
_NAMED = 10
#: time for the demo's jobs to end with it, in seconds
_DEMO_END_S = 6.0


def up(
    spec: Annotated[
        Path | None, typer.Argument(help="The cluster spec (YAML). Without: the GPUs that are found.")
    ] = None,
    devices: Annotated[int | None, typer.Option(help="That many simulated devices, in place of a spec.", min=1)] = None,
    vc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=GPUS",
            help="A virtual cluster, where no spec is given; again for more.",
            show_default="default, all GPUs",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Scheduling policy of all VCs, or VC=NAME of one; again for more. See docs/reference/policies.md.",
            show_default="that of the spec, else yarn-cs",
        ),
    ] = None,
    exchange: Annotated[
        ArbiterKind | None,
        typer.Option(
            help="How offers of cells are matched with requests: see docs/explanation/exchange.md.",
            show_default="that of the last start, else balanced",
        ),
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="The spec's devices are numbers: any spec runs on any machine.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the dashboard and the API there too, with a token; or none.",
            show_default="that of the last start",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Members of this group may use the socket too; or none.",
            show_default="that of the last start",
        ),
    ] = None,
    jobs_run_as: Annotated[
        JobsRunAs | None,
        typer.Option(
            help="As whom jobs run: as who submitted them, or all as the engine's user, who is then everybody's.",
            show_default="that of the last start, else submitter",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Delete files of jobs so long after they have ended (30d), or keep all (none).",
            show_default="that of the last start",
        ),
    ] = None,
    most_output: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep so much of what a task prints, the last of it (1GiB), or all (none).",
            show_default="that of the last start",
        ),
    ] = None,
    fence: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Keep tasks to their own GPUs (devices), and to their GPUs' share of memory and processors (memory, "
            "cpu): some of them, with commas; or none.",
            show_default="that of the last start, else none",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where everything is kept; or set HIVED_STATE.", show_default="~/.local/state/hived"
        ),
    ] = None,
    demo_: Annotated[
        bool,
        typer.Option("--demo", help="Three tenants, eight simulated devices, short real processes, the dashboard."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start even if running jobs lose their VC's cells by it.")
    ] = False,
    set_aside_jobs: Annotated[
        bool, typer.Option("--set-aside-jobs", help="Move files of jobs aside that the database does not know.")
    ] = False,
    adopt_copy: Annotated[
        bool, typer.Option("--adopt-copy", help="Take over the jobs of the state folder that this one is a copy of.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the engine that runs; its jobs run on, and the next start has them.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell what happens.")] = False,
) -> None:
    """Run the jobs of several tenants as processes on this machine.

    Finds the GPUs (NVML), or takes a spec; without any of spec, --devices and --vc it goes on as at the last start. So
    do --listen, --group and --exchange where they are not given. If the engine is killed, jobs run on, and the next
    one takes them over. Ctrl-C ends the engine and leaves jobs running; with --demo it ends them too.

    \b
    Examples:
      hived up --demo
      hived up --vc vision=4 --vc speech=2 --vc research=2
      hived up spec.yaml --listen 127.0.0.1:8080
      hived up big-cluster.yaml --simulated
      hived up --stop
    """
    if stop:
        given = [spec, devices, vc, policy, exchange, listen, group, jobs_run_as, keep, most_output, fence]
        if demo_ or simulated or any(value is not None for value in given):
            raise InputError("--stop ends an engine, and starts none: give --state alone with it")
        pid = stop_engine(engine_folder(state), _STOPS_S)
        print(f"the engine (pid {pid}) has ended; its jobs run on, and hived up takes them over")
        return
    if listen not in (None, _NONE):
        address(listen)
    if demo_ and (spec is not None or devices is not None or vc):
        raise InputError("--demo brings its own cluster; give no spec, --devices or --vc with it")
    if devices is not None and spec is not None:
        raise InputError("give a spec or --devices, not both")
    if spec is not None and vc:
        raise InputError("--vc is for a machine without a spec; in a spec they stand under virtualClusters")
    _allow_many_files()
    outlive_a_full_disk()
    with _folder(state, demo_) as folder, contextlib.closing(_store(folder)) as store:
        for line in take_over(store, adopt_copy, set_aside_jobs):
            messages().print(escape(f"hived: {line}"), style="yellow", soft_wrap=True)
        with messages().status("looking for GPUs"):
            if demo_:
                chosen = _Chosen(demo.demo_spec(), Simulated("8 simulated devices"))
            else:
                chosen = _chosen(spec, devices, vc or [], simulated, store)
            check_feasible(chosen.spec)
            last = last_start(store)
            kept = last.spec if last is not None and spec is None and devices is None and not vc else None
            named = _with_policies(chosen.spec, policy or [], kept)
            chosen = chosen._replace(spec=_with_guests(named, chosen.shares is not None))
        _may_displace(chosen.spec, store, yes)
        values = [choice and choice.value for choice in (exchange, jobs_run_as)]
        door = _Door(listen, group, values[0], values[1], keep, most_output, fence)
        door = door.over(_Door() if demo_ else _Door(**json.loads(store.value("door") or "{}")))
        door.keeping()
        door.fences()
        if door.jobs_run_as == JobsRunAs.ENGINE and os.geteuid() == 0:
            raise InputError(
                "--jobs-run-as engine: hived up runs as root, so everybody's jobs would be root's; leave it out "
                "(--jobs-run-as submitter), or start it as a user of its own (User= in a unit of systemd)"
            )
        code = asyncio.run(_Up(chosen, store, door, demo_, quiet, kept_listen=listen is None).run())
    if code:
        raise typer.Exit(code)


def _store(folder: Path) -> Store:
    """The store of a folder. Raises :class:`InputError` where root would take it from the user whose it is."""
    database = folder / "hived.db"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        owner = database.stat().st_uid
        if os.geteuid() == 0 and owner != 0:
            name = name_of(owner)
            raise InputError(
                f"{folder} is {name}'s, and hived up runs as root: jobs of {name} would run as root, and {name} could "
                f"start no engine on it any more; start it as {name} (sudo -u {name} hived up), or give another --state"
            )
    return Store(folder)


def _allow_many_files() -> None:
    """Raise the limit of open files: each running task takes one. The usual limit suits select(), which is not used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _folder(state: Path | None, is_demo: bool) -> Iterator[Path]:
    """The state folder; the demo's is temporary, unless one is given."""
    if state is not None or not is_demo:
        yield state_folder(state)
    else:
        with tempfile.TemporaryDirectory(prefix="hived-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)


class JobsRunAs(StrEnum):
    """As whom jobs run."""

    SUBMITTER = "submitter"
    ENGINE = "engine"


class _Door(NamedTuple):
    """How others reach the engine, and what it does for them beside jobs; kept for the next start."""

    listen: str | None = None
    group: str | None = None
    exchange: str | None = None
    jobs_run_as: str | None = None
    keep: str | None = None
    most_output: str | None = None
    fence: str | None = None

    def keeping(self) -> Keeping:
        """How much of jobs is kept. Raises :class:`InputError`."""
        try:
            files_s = inf if self.keep is None else read_duration(self.keep)
        except ValueError as error:
            raise InputError(f"--keep: {error}") from None
        try:
            output = 0 if self.most_output is None else read_bytes(self.most_output)
        except ValueError as error:
            raise InputError(f"--most-output: {error}") from None
        if 0 < output < _LEAST_OUTPUT:
            raise InputError(f"--most-output {self.most_output}: too little to find an error in; give 1MiB or more")
        return Keeping(output, files_s)

    def fences(self) -> frozenset[Fence]:
        """What tasks are kept to. Raises :class:`InputError`."""
        try:
            return frozenset(Fence(name.strip()) for name in (self.fence or "").split(",") if self.fence is not None)
        except ValueError:
            raise InputError(
                f"--fence {self.fence}: give {', '.join(Fence)}, some of them with commas between, or {_NONE}"
            ) from None

    def over(self, last: _Door) -> _Door:
        """What is given here, and else what was at the last start."""
        chosen = (old if new is None else new for new, old in zip(self, last, strict=True))
        return _Door(*(None if value == _NONE else value for value in chosen))


class _Chosen(NamedTuple):
    """The configuration of a start."""

    spec: ClusterSpec
    devices: Devices
    shares: Shares | None = None  #: from which the spec was made
    as_before: bool = False  #: whether the start has no options and repeats the last one


def _chosen(spec: Path | None, devices: int | None, vcs: list[str], simulated: bool, store: Store) -> _Chosen:
    """The configuration by the options, or else by the last start."""
    last = last_start(store)
    again = last if spec is None and devices is None and not vcs else None
    shares = _shares(vcs) if vcs or last is None else last.shares or ()
    if devices is not None:
        made = _shared_out(devices, "GPU", shares, not vcs)
        return _Chosen(made, Simulated(f"{devices} simulated devices"), shares)
    if again is not None and again.simulated:
        what = f"{again.spec.gpus:,} simulated devices"
        return _Chosen(again.spec, Simulated(what), again.shares, as_before=True)
    if spec is not None and simulated:
        loaded = load_spec(spec)
        return _Chosen(loaded, Simulated(f"simulated devices of {spec}"))
    wanted = load_spec(spec) if spec is not None else None  # its errors are reported on any machine
    is_last = again is not None and again.simulated is False
    if again is not None and is_last and again.shares is None:
        wanted = again.spec
    known = json.loads(store.value("gpus") or "{}")
    gpus = find_gpus(known=known.get("uuids", ()), same_boot=known.get("world") == world())
    if gpus is None:
        what = f"{wanted.source} cannot run here" if wanted is not None else "nothing to run on"
        raise InputError(
            f"no GPUs found through NVML, so {what}; "
            "give --devices 8 or --simulated for simulated ones, or see hived up --demo"
        )
    if wanted is not None:
        gpus.check(wanted)
        return _Chosen(wanted, gpus, as_before=is_last)
    made = _shared_out(len(gpus.names), _gpu_type(gpus.names[0]), shares, not vcs)
    return _Chosen(made, gpus, shares, is_last)


def _shared_out(devices: int, gpu: str, shares: Shares, as_before: bool) -> ClusterSpec:
    if as_before and (asked := sum(gpus for _, gpus in shares)) > devices:
        kept = " ".join(f"--vc {name}={gpus}" for name, gpus in shares)
        raise InputError(
            f"{asked} GPUs are shared out as at the last start ({kept}), and there are {devices}; give --vc"
        )
    return spec_for(this_node(), devices, gpu, shares or (("default", devices),))


def hides_the_machines(folder: Path) -> str:
    """What is said of an engine that its user's verbs find from now on in place of the machine's; "": nothing."""
    if folder != state_folder(None) or folder == OF_THE_MACHINE or not has_socket(OF_THE_MACHINE):
        return ""
    return f"from now on your commands ask this engine, and not the machine's; that: hived ps --state {OF_THE_MACHINE}"


def scattered(spec: ClusterSpec) -> list[str]:
    """Warnings for a machine shared by numbers: VCs whose GPUs are not one cell, the effect, and the way out."""
    (chain,) = spec.chains
    sizes = [level.gpus for level in chain.levels]
    numbers = ", ".join(map(str, sizes[:-1])) + (" or " if sizes[1:] else "") + f"{sizes[-1]} GPUs"
    if sizes[-1] & (sizes[-1] - 1):
        numbers += f", as {sizes[-1]} is no power of two"
    warnings = []
    for vc in spec.virtual_clusters:
        cells = [(cell.number, sizes[cell.level - 1]) for cell in vc.cells]
        most = max(size for _, size in cells)
        if most < sum(number * size for number, size in cells):
            has = " and ".join(f"{counted(number, 'cell')} of {counted(size, 'GPU')}" for number, size in cells)
            warnings.append(
                f"{vc.name} has {has}, so no guaranteed task of it can have more than {counted(most, 'GPU')}: cells "
                f"here have {numbers}; give it one of those numbers, or give cells of your own in a spec: "
                "hived up spec.yaml"
            )
    return warnings


def _may_displace(spec: ClusterSpec, store: Store, yes: bool) -> None:
    """Ask before running jobs lose the cells of their VC, or members and jobs lose the VC itself.

    Raises :class:`InputError` for a no or without a terminal.
    """
    if yes:
        return
    taken, gone = displaced_by(spec, store, time.time()), _gone(spec, store)
    if not taken and not gone:
        return
    lines = []
    if taken:
        lines.append(f"this start takes the cells of {counted(len(taken), 'running job')}, to run on as opportunistic:")
    for job, why in taken[:_NAMED]:
        lines.append("  " + clean(f"{job.name} ({counted(job.gpus, 'GPU')} of {job.vc}): {why}"))
    if len(taken) > _NAMED:
        lines.append(f"  and {len(taken) - _NAMED:,} more")
    if gone:
        lines += ["this start takes away virtual clusters:", *(f"  {clean(line)}" for line in gone)]
    text, way_out = "\n".join(lines), "without a spec, --devices and --vc it goes on as at the last start"
    if not sys.stdin.isatty():
        raise InputError(f"{text}\n  --yes starts it all the same; {way_out}")
    typer.echo(text, err=True)
    if not typer.confirm("start it all the same?", err=True):
        raise InputError(f"not started; {way_out}")


def _gone(spec: ClusterSpec, store: Store) -> list[str]:
    """Virtual clusters that a start takes from their members, or from jobs that have not ended, a line each."""
    last = last_start(store)
    kept = {vc.name for vc in spec.virtual_clusters}
    lines = []
    for vc in last.spec.virtual_clusters if last is not None else ():
        if vc.name in kept:
            continue
        _, jobs = store.jobs(JobFilter(states=[state for state in JobState if not state.ended], vc=vc.name), 1, None)
        members = 0 if vc.access is None else len({*vc.access.members, *vc.access.admins})
        if members or jobs:
            whose = [counted(members, "member")] * bool(members) + [f"{counted(jobs, 'job')} not ended"] * bool(jobs)
            lines.append(f"{vc.name}, with {' and '.join(whose)}")
    return lines


def _with_policies(spec: ClusterSpec, given: list[str], last: ClusterSpec | None) -> ClusterSpec:
    """The spec with the policies ``given`` over its own; ``last``: a start that goes on as the last one keeps those."""
    names = {
        vc.name: vc.policy for vc in (*(last.virtual_clusters if last else ()), *spec.virtual_clusters) if vc.policy
    }
    split = [split_policy(text) for text in given]
    for tenant, name in sorted(split):  # those of all VCs first
        names |= {tenant: name} if tenant else {vc.name: name for vc in spec.virtual_clusters}
    bare = replace(spec, virtual_clusters=tuple([replace(vc, policy="") for vc in spec.virtual_clusters]))
    by_vc(bare, {tenant: name for tenant, name in split if tenant})  # the VCs are known
    vcs = tuple([replace(vc, policy=names.get(vc.name, "")) for vc in spec.virtual_clusters])
    changed = replace(spec, virtual_clusters=vcs)
    try:
        by_vc(changed)
    except PolicyError as error:
        raise PolicyError(error.policy, f"{error.what}; mend it, or choose another: hived up --policy NAME") from error
    return changed


def _with_guests(spec: ClusterSpec, made: bool) -> ClusterSpec:
    """The spec, whose VCs under AntMan accept guests of all VCs where it was ``made`` without a file that says so."""
    hosts = [vc.name for vc in spec.virtual_clusters if vc.policy and isinstance(make_policy(vc.policy), AntMan)]
    if not hosts or any(vc.guests != NO_GUESTS for vc in spec.virtual_clusters):
        return spec
    if made:
        vcs = tuple(replace(vc, guests="all") if vc.name in hosts else vc for vc in spec.virtual_clusters)
        return replace(spec, virtual_clusters=vcs)
    text = "hived: no virtual cluster accepts guests, so nobody runs beside others; guests: all, or own, in the spec"
    messages().print(text, style="yellow", soft_wrap=True)
    return spec


def _shares(vcs: list[str]) -> Shares:
    found = []
    for text in vcs:
        name, sign, gpus = text.partition("=")
        if not name.isprintable() or not name or not sign or not (gpus.isascii() and gpus.isdigit()):
            raise InputError(f"--vc {text}: give a name and its GPUs, for example vision=4")
        found.append((name, int(gpus)))
    return tuple(found)


def _gpu_type(name: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in name).strip("-") or "GPU"


@dataclass(frozen=True)
class _Up:
    """A run of the engine."""

    chosen: _Chosen
    store: Store
    door: _Door
    is_demo: bool
    quiet: bool
    kept_listen: bool = False  #: whether its address is that of the last start
    console: Console = field(default_factory=output)

    @property
    def listen(self) -> tuple[str, int] | None:
        """Host and port."""
        return None if self.door.listen is None else address(self.door.listen)

    @property
    def exchange(self) -> ArbiterKind:
        """How offers of cells are matched with requests."""
        return ArbiterKind(self.door.exchange or ArbiterKind.BALANCED)

    def keep_door(self) -> None:
        """Keep its door for the next start, once it is open."""
        if not self.is_demo:
            self.store.keep((), (), values={"door": json.dumps(self.door._asdict())})

    async def run(self) -> int:
        """Run until a signal or a fatal error; the exit code."""
        server, stopped = Server(), exit_signal()
        try:
            self._open(server)  # first: a start that finds its door shut has changed nothing
            return await self._run(server, _token(self.store.folder), stopped)
        finally:
            await server.stop()

    async def _run(self, server: Server, token: str, stopped: asyncio.Future[int]) -> int:
        loop, arbiter = asyncio.get_running_loop(), make_arbiter(self.exchange.value)
        engine = Engine(
            self.chosen.spec,
            self.store,
            self.chosen.devices,
            shares=self.chosen.shares,
            arbiter=arbiter,
            job_users=JobUsers.here(self.door.jobs_run_as == JobsRunAs.ENGINE),
            keeping=self.door.keeping(),
            fences=self.door.fences(),
        )
        helpers: list[asyncio.Task[None]] = []
        try:
            await engine.start()
            # present objects are long-lived: scanning them for garbage would delay requests
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            assert engine.failed is not None
            service = LocalService(engine)
            source = local_view(service, _title(self.chosen.spec), acts=True)
            service.revoked = server.forget
            await self._serve(service, source, server, token)
            helpers.append(loop.create_task(source.sample()))
            self._greet(engine, server, token)
            if not self.quiet:
                helpers.append(loop.create_task(self._print_events(engine, service)))
            if self.is_demo:
                active = engine.job_scheduler.jobs.__len__
                helpers.append(loop.create_task(demo.play(engine.submit, active, str(self.store.folder))))
            await until(stopped, engine.failed, helpers)
            if engine.failed.done():
                raise _fatal(engine.failed.result(), engine)
            if self.is_demo:
                helpers.pop().cancel()
                await self._end_jobs(engine)
        finally:
            engine.let_go()  # first: tasks ended by a shutdown of the machine have not failed
            for helper in helpers:
                helper.cancel()
            await server.stop()
            await engine.stop()
        self._goodbye(engine)
        return stopped.result()

    def _open(self, server: Server) -> None:
        folder, group = self.store.folder, self.door.group
        socket = folder / "hived.sock"
        open_jobs(folder, group, self.door.jobs_run_as == JobsRunAs.ENGINE)
        listen = ("127.0.0.1", _DEMO_PORT) if self.is_demo and self.listen is None else self.listen
        try:
            server.open(listen=listen, socket=socket, group=group)
        except InputError as error:
            if self.kept_listen and self.listen is not None:
                raise InputError(f"{error} (as at the last start; --listen none gives that up)") from None
            if not self.is_demo or self.listen is not None:
                raise
            server.open(listen=("127.0.0.1", 0), socket=socket, group=group)

    async def _serve(self, service: LocalService, source: Source, server: Server, token: str) -> None:
        app = None
        if server.address is not None:
            host = server.address[0] if self.listen is None else self.listen[0]
            app = make_app(service, source, token=token, hosts=() if host in ANY else (host,))
            service.address = link(*server.address)
        local = make_app(service, source, token=None, hosts=(), local=True)
        await server.start(app, socket_app=local)
        self.keep_door()

    def _greet(self, engine: Engine, server: Server, token: str) -> None:
        say = self.console.print

        def hint(text: str) -> None:
            say(escape(text), style="dim", soft_wrap=True)

        as_before = " [dim](as at the last start)[/dim]" if self.chosen.as_before else ""
        say(f"[bold]hived is up[/bold]: {escape(engine.devices.what)}; {_shares_text(self.chosen.spec)}{as_before}")
        if server.address is not None:
            shown = sys.stdout.isatty()  # readers of the journal are not asked to look
            say(f"dashboard  [bold]{link(*server.address, looking(token) if shown else '')}[/bold]", soft_wrap=True)
            if not shown:
                hint(f"           with ?token=... as it is in {self.store.folder / 'token'}")
            hint("           it only looks; to act there: hived dashboard" + self._state_option())
        else:
            hint("dashboard  start with --listen 127.0.0.1:8080")
        if not self.is_demo:
            hint(f"jobs       {engine.job_users.text()}")
        warnings = [] if self.chosen.shares is None else scattered(self.chosen.spec)
        if os.geteuid() == 0 and not self.is_demo and (shut := not_passable(engine.folder)) is not None:
            warnings.append(f"{shut} is shut to other users, so root's jobs alone can run: --state /var/lib/hived")
        warnings += [] if self.is_demo else unknown_accounts(self.chosen.spec)
        theirs = OF_THE_MACHINE / "hived.db"
        if engine.folder != OF_THE_MACHINE and os.path.exists(theirs) and not engine.devices.simulated:  # noqa: PTH110
            warnings.append(f"{OF_THE_MACHINE} has the machine's engine, which may give out the same GPUs")
        if hidden := hides_the_machines(engine.folder):
            warnings.append(hidden)
        if server.address is not None and server.address[0] not in _HERE:
            warnings.insert(0, _ON_THE_NETWORK)
        for warning in warnings:
            messages().print(escape(f"hived: {warning}"), style="yellow")
        state = self._state_option()
        vc = self.chosen.spec.virtual_clusters[0].name if self.chosen.spec.virtual_clusters else "VC"
        hint(f"try        hived ps{state}")
        hint(f"           hived submit{state} --vc {vc} --gpus 1 -- sleep 60")
        end = "Ctrl-C ends it all" if self.is_demo else "Ctrl-C ends the engine; jobs run on"
        hint(f"           {end}\n")
        sys.stdout.flush()

    def _state_option(self) -> str:
        return "" if self.store.folder == state_folder(None) else f" --state {self.store.folder}"

    async def _print_events(self, engine: Engine, service: LocalService) -> None:
        """Print events as they happen, a line each."""
        last = engine.recent[0].seq - 1 if engine.recent else 0
        while True:
            await engine.changed(last)
            await asyncio.sleep(0.02)  # a submission is answered by then
            for event in list(engine.recent):
                if event.seq > last:
                    last = event.seq
                    self._print_event(event, service)
            sys.stdout.flush()

    def _print_event(self, event: Event, service: LocalService) -> None:
        if event.kind in ("task_ended", "recovered"):
            return
        text = clean(service.shown_event(event).text)
        red = dict.fromkeys(("failed", "retrying", "device_bad", "no_progress"), "red")
        colour = {"requeued": "yellow", "stopping": "yellow", **red}
        at = time.strftime("%H:%M:%S", time.localtime(event.at))
        self.console.print(f"[dim]{at}[/dim]  {escape(text)}", style=colour.get(event.kind, ""), soft_wrap=True)
        if event.kind == "submitted":  # print the reason of a job that does not start at once
            with contextlib.suppress(HivedError):
                shown = service.job(str(event.job))
                if shown.state == "queued" and shown.why:
                    why = escape(clean(f"{shown.name} waits: {'; '.join(shown.why)}"))
                    self.console.print(f"          {why}", style="cyan", soft_wrap=True)

    async def _end_jobs(self, engine: Engine) -> None:
        self.console.print("\nending the demo's jobs", style="dim")
        for job in list(engine.job_scheduler.jobs.values()):
            with contextlib.suppress(HivedError):
                engine.cancel(str(job.id), "the end of the demo")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEMO_END_S):
                while engine.job_scheduler.jobs:
                    await engine.changed(engine.last_event)

    def _goodbye(self, engine: Engine) -> None:
        jobs = engine.job_scheduler.jobs
        if self.is_demo or not jobs:
            self.console.print("hived is down")
            return
        running = _running(engine)
        left = f"{counted(running, 'running job')} left to run, {counted(len(jobs) - running, 'waiting job')} in place"
        self.console.print(f"hived is down: {left}; hived up takes them over")


def open_jobs(folder: Path, group: str | None, shared: bool) -> None:
    """Let a group traverse the state folder, to the socket; None: nobody but its owner.

    Where jobs of all are one user's (``shared``) the group reads what they write. An engine of root lets everybody
    pass, to what is theirs. The other files have modes of their own.
    """
    jobs = jobs_folder(folder)
    if os.geteuid() == 0:
        for passed in (folder, jobs):
            passed.chmod(0o711)
        return
    jobs.chmod(0o700)
    if group is not None:
        let_in(folder, group, 0o710)
        if shared:
            let_in(jobs, group, 0o2750)


def _fatal(error: HivedError, engine: Engine) -> HivedError:
    if not isinstance(error, StorageError):
        return error
    return StorageError(
        f"{error}\n  the engine ends, since nothing may happen without a record; {_running(engine)} jobs run on,"
        " and hived up takes them over once it can write"
    )


def _running(engine: Engine) -> int:
    return sum(job.state.holds for job in engine.job_scheduler.jobs.values())


def _title(spec: ClusterSpec) -> str:
    nodes = spec.node_names
    return nodes[0] if len(nodes) == 1 else f"{len(nodes):,} nodes"


def _shares_text(spec: ClusterSpec) -> str:
    found = [f"{escape(vc.name)} {spec.reserved(vc):,}" for vc in spec.virtual_clusters]
    return ", ".join(found) if len(found) <= 8 else f"{len(found)} virtual clusters"


def _token(folder: Path) -> str:
    """The token, which grants everything over TCP. Kept, so that links work after a restart."""
    path = folder / "token"
    try:
        kept = path.read_text(encoding="ascii").strip()
        if len(kept) >= 32:
            return kept
    except (OSError, UnicodeDecodeError):
        pass
    token = secrets.token_urlsafe(32)
    try:
        path.touch(mode=0o600)  # never readable by others
        path.write_text(token, encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}); free some space, or give another --state"
        ) from None
    return token
