"""One training process that obeys its control page: the commands are carried out here, at boundaries.

All of it runs in the training thread, but for the monitor (:mod:`.monitor`), which reports, and rings. What fails here
is reported, never raised into the script: the job goes on by a lower tier, and its page says which and why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from hived_control.deciding import decide, decided
from hived_control.folder import JobFolder
from hived_control.gpus import of_machine
from hived_control.page import Abilities, Answer, Command, Page, State, Wanted
from hived_control.stopping import Deferred, descendants, send, stop_self, woken_at

from .boundaries import Boundaries
from .memory.framework import FrameworkTier
from .memory.tier import Bytes, StopTier, Tier, TierError
from .monitor import Monitor
from .moving.destination import Destination
from .moving.named import MoveError, NamedState
from .moving.source import Beginning, Source, flush_files
from .moving.waiter import PASSED_ON
from .share import Pacer
from .threads import is_users, others_may_compute

_SMOOTH = 0.1  #: weight of a new mini-batch in the smoothed time
_UNNAMED = "its script names no state: see hived_runtime.state"
_AGREE_S = 10.0  #: how long a rank waits at the agreed mini-batch for a controller that has not been heard of


@dataclass(frozen=True, slots=True)
class Floor:
    """The limits that a job was started with: in force without a command, and when a command's lease is over."""

    memory_limit: int = 0  #: device bytes; 0: none
    share: float = 1.0


class TrainingProcess:
    """A process of a job, from its first mini-batch to its end."""

    def __init__(
        self,
        job: JobFolder,
        floor: Floor,
        pager: Callable[[], Tier] | None = None,
        destination: Destination | None = None,
    ) -> None:
        self._job = job
        self._floor = floor
        self._make_pager = pager
        self._destination = destination
        self._named: NamedState | None = None
        self._unmoved = ""  #: why it does not move, though it has named its state
        self._began = Beginning.now()
        self._source: Source | None = None
        self._refused, self._refusal = -1, ""  #: number of a command to move that failed, and why
        self._page: Page | None = None
        self._word = b""  #: of the command that was read
        self._answer = Answer()
        self._memory, self._limit_why = (0, 0), ""  #: the limit, and how far it may rise; why it is not kept
        self._tier_why = ""  #: why the tier in force is not the one that was wanted
        self._release_why = ""  #: why the last suspension was by a lower one
        self._attention = False  #: a command waits for a later mini-batch, or its lease is over
        self._heard_at = 0.0  #: of the command in force
        self._began_at = 0.0  #: the mini-batch
        self.iterations = 0
        self.seconds = 0.0  #: of a mini-batch, smoothed
        self._timed = 0  #: the mini-batches that the time is of
        self.busy_s = 0.0  #: between the boundaries and the last steps, in all
        self.sample_due = False
        self.least_bytes = 0
        self.last_boundary = time.monotonic()
        self.wake = threading.Event()
        self.device = torch.device("cpu")
        self._elastic = False  #: it grows and shrinks
        self.every_second: Callable[[], object] = lambda: None  #: called by the monitor, once it has joined
        self._boundaries = Boundaries(self._ended, self.boundary)
        self._tiers: list[Tier] = [StopTier()]
        self._pacer: Pacer | None = None
        self._monitor: Monitor | None = None

    # -- mini-batches: the path of every one of them

    def _ended(self) -> None:
        now = time.monotonic()
        if self._began_at:
            self.busy_s += now - self._began_at
        self.iterations += 1
        if self._pacer is not None and self._pacer.share < 1:
            try:
                self._pacer.end()
            except Exception as error:
                self._failed(error)

    def boundary(self, named: bool = False) -> None:
        """The process is between two mini-batches, or where none is; ``named``: its named state is whole."""
        page = self._page
        if page is None or self._attention or page.command_word() != self._word:
            with Deferred() as signals:  # handlers are the script's: what they raise is for the script
                self._act(signals, named)
        else:
            self._act(None, named)

    def point(self) -> None:
        """The state that the script has named is whole: it may be handed over."""
        page = self._page
        if page is not None and (self._attention or page.command_word() != self._word):
            self.boundary(named=True)

    def name_state(self, named: NamedState) -> None:
        """The script has named its state: a destination takes over here, or ends."""
        if self._named is not None:
            self._unmoved = "its script names its state twice"
        self._named = named
        if self._destination is not None:
            self._arrive(self._destination, named)
        elif self._page is not None:
            self._page.report_abilities(self._abilities())

    def _act(self, signals: Deferred | None, named: bool) -> None:
        try:
            page = self._page
            if page is None:
                if self._destination is not None:
                    return  # what it does before it takes over counts as nothing
                page = self._join()
            now = time.monotonic()
            if self.iterations != self._timed:  # else it is a place in a phase without steps
                if self._timed:
                    took = now - self.last_boundary
                    self.seconds += (took - self.seconds) * (_SMOOTH if self.seconds else 1.0)
                self._timed = self.iterations
            self.last_boundary = now
            page.report_progress(self.iterations, self.seconds, now)
            if self._attention or page.command_word() != self._word:
                self._attend(page, signals, named)
            tier = self._tiers[0]
            if self._memory[0]:
                tier.boundary()
                if tier.limited != self._answer.memory_limit:  # it has risen by itself
                    self._report(why=self._answer.why)
            if self.sample_due:
                self.sample_due = False
                self.least_bytes = tier.held().used
            if self._pacer is not None and self._pacer.share < 1:
                self._pacer.begin()
        except StateLostError:
            raise
        except Exception as error:
            if _is_scripts(error):
                raise
            self._failed(error)
        self._began_at = time.monotonic()

    def _failed(self, error: Exception) -> None:
        """A defect of ours, or of the machine: the script goes on, and the page says so."""
        with contextlib.suppress(Exception):
            self._report(state=State.RUNNING, why=f"{type(error).__name__}: {error}")

    # -- joining and leaving

    def _join(self, first: Command | None = None) -> Page:
        first = first or Command(memory_limit=self._floor.memory_limit, share=self._floor.share)
        page = self._job.join(os.getpid(), first)
        self._page = page
        self.last_boundary = time.monotonic()
        groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
        self.device = next((each.device for group in groups for each in group["params"]), self.device)
        self._tiers = [FrameworkTier(self.device, self._optimizers), StopTier()]
        if self._make_pager is not None:
            try:
                self._tiers.insert(0, self._make_pager())
            except TierError as error:
                self._tier_why = str(error)
        self._pacer = Pacer(self.device, self._optimizers)
        page.report_abilities(self._abilities())
        self._apply(first)
        rank, ranks = _ranks()
        self._word = page.command_word()
        self._report(
            noted=page.command().number,
            state=State.RUNNING,
            rank=rank,
            ranks=ranks,
            tier=self._tiers[0].name,
            device=of_machine(self.device.index or 0, os.environ) if self.device.type == "cuda" else str(self.device),
        )
        page.publish()  # no controller before now: it would take the job for one that is not elastic, or has one rank
        self._monitor = Monitor(self._job, page, self)
        self._monitor.start()
        return page

    def _abilities(self) -> Abilities:
        return Abilities(named=self._named is not None and not self._unmoved)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that have stepped; before the first step those that are named."""
        return self._boundaries.optimizers or ([] if self._named is None else self._named.optimizers())

    @property
    def trains(self) -> bool:
        """Whether it has ended a mini-batch, and obeys."""
        return self._page is not None

    def leave(self) -> None:
        """The process ends."""
        with contextlib.suppress(Exception):
            self._job.leave(os.getpid())

    def forget(self) -> None:
        """In a forked child: it is no process of the job, unless it trains itself."""
        if self._monitor is not None:
            self._monitor.close()
        if self._pacer is not None:
            self._pacer.set(1.0)  # the child has its hooks, and may not use the device
        self._page = self._monitor = self._pacer = None
        self._word = b""
        self._answer = Answer()
        self._boundaries.disarm()
        self.iterations, self.seconds = 0, 0.0
        self.wake = threading.Event()

    # -- commands

    def pending(self) -> bool:
        """Whether a command waits for a boundary. Asked by the monitor."""
        return self._page is not None and (self._page.command_word() != self._word or self._attention)

    def hurry(self, hurries: bool) -> None:
        """Whether somebody waits until it pauses, moves or goes on. Told by the monitor."""
        if self._pacer is not None:
            self._pacer.hurry(hurries)

    def computing_s(self) -> float:
        """Time within mini-batches so far, without what a share has made it wait. Asked by the monitor."""
        return self.busy_s - (self._pacer.waited_s if self._pacer is not None else 0.0)

    def held(self) -> Bytes:
        """Memory on the device. Asked by the monitor."""
        return self._tiers[0].held()

    def look_for_phase(self) -> None:
        """A command has waited for long: the script may be in a phase without steps."""
        if self._page is not None and self._page.command().at == 0:  # ranks agree on steps alone
            self._boundaries.look_for_phase()

    def expire(self) -> None:
        """The monitor has found that the lease of the command in force is over."""
        self._attention = True

    def _command(self, page: Page) -> Command:
        """What is wanted now: a part of the command whose lease is over does not count."""
        self._word = page.command_word()
        command, now = page.command(), time.monotonic()
        if 0 < command.limits_until <= now:
            limits = {"memory_limit": self._floor.memory_limit, "memory_most": 0, "share": self._floor.share}
            command = replace(command, **limits)  # type: ignore[arg-type]
        is_over = 0 < command.suspended_until <= now
        # nor without its page, by which alone it could be resumed: the folder has been deleted
        if command.wanted is Wanted.SUSPEND and (is_over or not page.file.exists()):
            command = replace(command, wanted=Wanted.RUN, at=0)
        return command

    def _attend(self, page: Page, signals: Deferred | None, named: bool) -> None:
        """Carry out the command in force, as far as this mini-batch allows. Returns when the script may go on."""
        self._attention = False
        while True:
            command = self._command(page)
            if command.number != self._answer.noted:
                self._heard_at = time.monotonic()
            self._apply(command)
            if command.wanted is not Wanted.MOVE and self._source is not None:
                self._source.give_up()
                self._source = None
            if command.wanted is Wanted.RUN or command.number == self._refused:
                self._report(noted=command.number, state=State.RUNNING, why=self._refusal)
                return
            self._refusal = ""
            try:
                if command.wanted is Wanted.MOVE and not (self._is_ready(page, command) and named):
                    self._attention = True
                    return
                if command.at > self.iterations:
                    self._attention = True
                    self._report(noted=command.number, state=State.READY if self._source else State.RUNNING)
                    return
                if command.at and command.at < self.iterations:  # passed before the command came: more will be said
                    # a controller that is alive says it soon; until then an elastic job is not to change
                    self._attention = time.monotonic() < self._heard_at + _AGREE_S
                    self._report(noted=command.number, state=State.READY if self._source else State.RUNNING)
                    return
                if command.at:
                    together = self._together(page, command, "go", State.WAITING)
                    if together is None:
                        continue  # another command
                    if not together:
                        self._report(
                            noted=command.number,
                            state=State.READY if self._source else State.RUNNING,
                            why="the other ranks have not come to the agreed mini-batch",
                        )
                        return
                if command.wanted is Wanted.MOVE:
                    self._move(page, command, signals)
                    return
                self._suspend(page, command, signals)
                if signals is not None and signals.have_come():  # they end a suspension, until the next boundary
                    self._attention = True
                    return
            except MoveError as error:
                self._stay(command, str(error))
            except StateLostError:
                raise
            except Exception as error:
                if command.wanted is not Wanted.MOVE:
                    raise
                self._stay(command, f"{type(error).__name__}: {error}")

    def _apply(self, command: Command) -> None:
        if self._pacer is not None:
            self._pacer.set(command.share)
        memory = (command.memory_limit, command.memory_most)
        if memory != self._memory:
            self._memory = memory
            try:
                self._limit_why = self._tiers[0].limit(*memory)
                self._tiers[0].boundary()
            except TierError as error:
                self._limit_why = str(error)

    def _together(self, page: Page, command: Command, kind: str, state: State) -> bool | None:
        """Wait in ``state`` for the decision of all ranks: ``go``, or of a move to go on at its destination, ``move``.

        After a while without one: no; ranks whose mini-batches or states are large have longer. ``None``: there is none
        yet, and another command.
        """
        decision = self._job.decision(kind, command.at)
        self._report(noted=command.number, state=state)
        patience = max(_AGREE_S, 3 * self.seconds)
        until = time.monotonic() + patience
        while (found := decided(decision)) is None:
            self.wake.clear()
            if page.command_word() != self._word:
                return None
            if time.monotonic() > until:
                if state is State.HANDED and self._others_hand_over():
                    until = time.monotonic() + patience
                    continue
                with contextlib.suppress(OSError):
                    return decide(decision, False)
                return False
            self.wake.wait(0.05)
        return found

    def _others_hand_over(self) -> bool:
        """Whether all other ranks move too, and one of them is not so far yet."""
        states = {page.answer().state for page in self._job.pages()}
        return State.WAITING in states and states <= {State.WAITING, State.HANDED}

    # -- for elastic jobs

    def command_word(self) -> bytes:
        """A word that changes with every command; empty while there is no page."""
        return b"" if self._page is None else self._page.command_word()

    def command(self) -> Command:
        """The command in force."""
        return Command() if self._page is None else self._page.command()

    def declare_elastic(self) -> None:
        """It grows and shrinks, and does not move."""
        self._elastic = True
        if self._page is not None:
            self._report()

    def report_ranks(self, rank: int, ranks: int, why: str = "", seconds: float = 0.0) -> None:
        """Report another rank of this process, another number of ranks, and why a wish for another is not carried out.

        ``seconds``: that the change took. With a page made for that if no mini-batch has ended yet.
        """
        if self._page is None:
            self._join()
        self._report(rank=rank, ranks=ranks, why=why, seconds=seconds)

    # -- moves

    def _is_ready(self, page: Page, command: Command) -> bool:
        """Whether the destination is warm; it is started first. While it is not, the script trains on."""
        if self._source is None:
            if self._elastic:
                raise MoveError("an elastic job does not move: it grows and shrinks")
            self._report(noted=command.number, state=State.MOVING)
            if self._named is None or self._unmoved:
                raise MoveError(self._unmoved or _UNNAMED)
            port = command.port if self._answer.ranks > 1 else 0
            self._source = Source(command.target, self._began, self._job.path, port)
        warm = self._source.warm()
        state = State.READY if warm else State.MOVING
        if state is not self._answer.state or command.number != self._answer.noted:
            self._report(noted=command.number, state=state)
        ready = warm and command.at >= 0
        self._attention = not ready  # also while all ranks are waited for: the destination may end
        return ready

    def _move(self, page: Page, command: Command, signals: Deferred | None) -> None:
        """Hand the state over, and leave."""
        source = self._source
        if source is None or self._named is None or self._unmoved:
            raise MoveError(self._unmoved or "the destination is gone")
        began = time.monotonic()
        # what is left of it: on another host the clock is another
        left = command.limits_until and max(command.limits_until - began, 0.001)
        limits = Command(
            memory_limit=command.memory_limit, memory_most=command.memory_most, share=command.share, limits_until=left
        )
        size = source.hand_over(self._named.saved(), self.iterations, self.seconds, limits)
        if command.at and not self._all_move(page, command):
            raise MoveError("the other ranks have not moved")
        flush_files()  # before it goes on there, and writes to them too
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            source.commit()
        except Exception:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            raise
        took = time.monotonic() - began
        self._report(noted=command.number, state=State.MOVED, moved_bytes=size, seconds=took)
        self._job.leave(os.getpid())
        # a handler of the script is to run once, and where the job is now
        source.leave([] if signals is None else signals.taken())

    def _all_move(self, page: Page, command: Command) -> bool:
        """All ranks have handed their state over, and go on at their destinations, or all stay."""
        while (found := self._together(page, command, "move", State.HANDED)) is None:
            new = self._command(page)
            if (new.wanted, new.at) != (command.wanted, command.at):
                return decide(self._job.decision("move", command.at), False)
            command = new
        return found

    def _stay(self, command: Command, why: str) -> None:
        """The job does not move by this command."""
        if self._source is not None:
            self._source.give_up()
            self._source = None
        self._refused, self._refusal = command.number, why

    def _arrive(self, destination: Destination, named: NamedState) -> None:
        """Take the job over from another process."""
        destination.arrive(named, partial(self._arrived, destination))

    def _arrived(self, destination: Destination, iterations: int, seconds: float, limits: Command) -> None:
        self.iterations, self.seconds = iterations, seconds
        self._destination = None
        self._timed = self.iterations
        if limits.limits_until:
            limits = replace(limits, limits_until=time.monotonic() + limits.limits_until)
        self._join(limits).report_progress(self.iterations, self.seconds, self.last_boundary)
        destination.here()

    # -- suspension

    def _suspend(self, page: Page, command: Command, signals: Deferred | None) -> None:
        """Release all device memory, stop, and take it back when the command has changed, or a signal has come.

        Handlers of signals run afterwards: the script would find its tensors empty.
        """
        began = time.monotonic()
        tier, moved = self._released()
        took = time.monotonic() - began
        others: list[int] = []
        try:
            others = self._children()
            send(signal.SIGSTOP, others)
            self._report(noted=command.number, state=State.SUSPENDED, tier=tier.name, seconds=took, moved_bytes=moved)
            self._stay_stopped(page, signals)
        finally:
            send(signal.SIGCONT, others)
            self._take_back(tier)

    def _released(self) -> tuple[Tier, int]:
        """Release memory by the highest tier that can: the tier, and the bytes that it has copied."""
        reasons, tiers = [], self._tiers
        try:
            may_compute = others_may_compute()
        except Exception:  # what they reach has changed while it was looked at
            may_compute = True
        if may_compute:  # on what would be taken from them
            tiers = tiers[-1:]
            reasons.append("another thread of the script may compute: its memory stays")
        for tier in tiers:
            try:
                moved = tier.release()
            except TierError as error:
                reasons.append(str(error))
            except Exception as error:  # whatever fails in a tier, the next one may do
                reasons.append(f"{tier.name}: {type(error).__name__}: {error}")
            else:
                if tier.stayed:
                    reasons.append(f"{tier.stayed:,} bytes stay in memory: they are in no tensor that can be emptied")
                break
        self._release_why = "; ".join(reasons)
        return tier, moved

    def _take_back(self, tier: Tier) -> None:
        began = time.monotonic()
        while True:
            try:
                tier.restore()
                break
            except TierError as error:
                self._report(why=str(error))
                time.sleep(0.2)
            except Exception as error:
                raise StateLostError(f"the state of this suspended process is lost: {error}") from error
        self.last_boundary = time.monotonic()
        self._report(state=State.RUNNING, seconds=self.last_boundary - began, tier=self._tiers[0].name)

    def _stay_stopped(self, page: Page, signals: Deferred | None) -> None:
        while (command := self._command(page)).wanted is Wanted.SUSPEND:
            if signals is not None and signals.have_come():
                return
            self.wake.clear()
            if command.number != self._answer.noted:
                self._report(noted=command.number)
            with woken_at(command.suspended_until):  # as it is now: it may have been renewed
                stop_self()
                if self._command(page) == command:
                    # continued by someone else; or nothing stops this process, the first of a container
                    self.wake.wait(0.5)

    def _children(self) -> list[int]:
        """Descendants that are no processes of the job themselves."""
        ranks = {page.pid for page in self._job.pages()} - {os.getpid()}
        below = {pid for rank in ranks for pid in descendants(rank)} if ranks else set()
        return [pid for pid in descendants(os.getpid()) if pid not in ranks and pid not in below]

    # -- reports

    def _note(self) -> str:
        return "; ".join(filter(None, (self._tier_why, self._release_why, self._limit_why)))

    def _report(self, **changes: object) -> None:
        page = self._page
        if page is None:
            return
        now = {
            "memory_limit": self._tiers[0].limited,
            "share": 1.0 if self._pacer is None else self._pacer.share,
            "elastic": self._elastic,
            "note": self._note(),
        }
        answer = replace(self._answer, **{"why": "", **now, **changes})  # type: ignore[arg-type]
        if answer.state is not self._answer.state:
            answer = replace(answer, since=time.monotonic())
        self._answer = answer
        page.report_answer(answer)


class StateLostError(RuntimeError):
    """What a suspended process had cannot be read back. The one error that ends the script: it has no weights."""


def _is_scripts(error: Exception) -> bool:
    """Whether an error comes from code of the script, a signal handler that has run just now."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and is_users(last.tb_frame.f_code.co_filename)


def _ranks() -> tuple[int, int]:
    """Rank and number of ranks of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
