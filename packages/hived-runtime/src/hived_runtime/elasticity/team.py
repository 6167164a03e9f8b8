"""A team of data-parallel workers whose number changes while they train (Gandiva, OSDI'18, 4.1 and 4.2.2).

One mini-batch of the team is one global batch, whatever the number of workers: it is split among them, and the
gradients are averaged, each with the part of the samples that it is of. So weights after a change are those of a run
without (in floating point, but for the order of additions).

The number changes between two mini-batches. Rank 0 knows when: its wish goes with the gradients of the mini-batch
before, so that all know it at the same one, and none waits for a worker that has left.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hived_control.environment import JOB
from hived_control.folder import JobFolder

from .. import starting
from ..process import TrainingProcess
from . import group, recruiter
from .recruiter import Invitation, Recruiter
from .watch import Watch

_STREAMS = 1_000_003  #: between the seeds of two workers that have joined


class Stateful(Protocol):
    """What has a state that new workers need: a scheduler of the learning rate, a ``GradScaler``, an average."""

    def state_dict(self) -> Any:
        """The state, of tensors, numbers and what can be pickled."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take over a state."""


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's part of a global batch."""

    batch: int  #: number of the global batch in its epoch
    size: int  #: samples of all workers
    indices: tuple[int, ...]  #: of the data set, of this worker; none in a batch with fewer samples than workers

    @property
    def weight(self) -> float:
        """Of this worker's gradients."""
        return len(self.indices) / self.size


class Team:
    """The workers of an elastic job, as one of them sees it. Made by :func:`hived_runtime.elastic`, once a process."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        global_batch: int,
        also: Sequence[Stateful],
        running: TrainingProcess | None,
    ) -> None:
        self.rank = 0
        self.workers = 1
        self.epoch = 0
        self.part: Part | None = None  #: of the global batch that the script has in its hands
        self.groups = 0  #: process groups made so far
        self.change_s = 0.0  #: seconds that the last change of the number of workers took, all at this worker
        self.global_batch = global_batch
        self._model, self._optimizer, self._also = model, optimizer, tuple(also)
        self._running = running
        self._recruiter: Recruiter | None = None
        self._watch = Watch(lambda: "")
        self._device = next((each.device for each in self._tensors()), torch.device("cpu"))
        self._stem = ""
        self._start = 0  #: the global batch that this worker begins its first epoch with
        self._began = self._finished = self._joined = False
        self._passed = True  #: the epoch has had its pass over the data
        self._agreed = 0  #: workers after this mini-batch, as all know; 0: as before
        self._stepped = True  #: the optimizer, since the last part was handed out
        self._averaged = False  #: gradients have been, since then
        self._backward = -1  #: that has its averaging queued
        self._hooks: list[Any] = []  #: of the parameters, while there are several workers
        self._pid = os.getpid()
        if running is not None:
            running.declare_elastic()
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        atexit.register(self._at_exit)

    # -- for the script

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs, for a worker that has joined from where the others are. One such loop a script."""
        if self._began:
            raise RuntimeError("an elastic job has one loop over its epochs: new workers could not tell two apart")
        self._began = True
        try:
            for epoch in range(self.epoch, count):
                self.epoch = epoch
                self._passed = False
                yield epoch
                self._start = 0
        finally:
            self._finish()

    def loader(
        self, dataset: Dataset[Any], shuffle: bool = False, seed: int = 0, drop_last: bool = False, **options: Any
    ) -> Loader:
        """An iterable over this worker's parts of the global batches of the epoch, once in each of ``epochs``.

        ``shuffle`` by ``seed`` and epoch; ``drop_last``: without the last global batch if it is short; ``options``
        as of ``torch.utils.data.DataLoader``, but for those that say which samples make a batch.
        """
        return Loader(self, dataset, shuffle, seed, drop_last, options)

    # -- coming together

    def begin_alone(self) -> None:
        """Be the only worker: no process group, no hooks."""
        if self._running is not None:
            job = JobFolder.named(os.environ[JOB])
            recruiter = Recruiter(self._running, job, self.global_batch, self._device)
            self._recruiter, self._stem = recruiter, recruiter.stem
            self._watch_over(Watch(recruiter.lost, lambda: recruiter.end(orderly=False)))

    def begin_with(self, invitation: Invitation) -> None:
        """Be a new worker of a team: join its next group, and take over the state."""
        self._stem, self.rank = invitation.stem, invitation.rank
        self.groups = invitation.number - 1
        parent = os.getppid()
        self._watch_over(Watch(lambda: self._rank_0_lost(parent)))
        self._change(invitation.workers, invitation.workers - 1, joins=True)
        self._joined = True

    def begin_with_launcher(self) -> None:
        """Be a worker of those that a launcher (torchrun) has started on this machine, with rank 0's state."""
        workers = int(os.environ["WORLD_SIZE"])
        torch.distributed.init_process_group(group.backend(self._device, workers))
        self.rank, self.workers, self.groups = torch.distributed.get_rank(), workers, 1
        if self.rank == 0:
            self.begin_alone()
        box = [self._stem, os.environ.get(JOB)]
        torch.distributed.broadcast_object_list(box, src=0)
        self._stem = box[0] or ""
        foreign = torch.tensor([float(box[1] != os.environ.get(JOB))], device="cpu")
        torch.distributed.all_reduce(foreign)
        if foreign and self._recruiter is not None:
            self._recruiter = None
            print(
                "hived_runtime: every process of this launcher is a job of its own, so their number cannot be changed: "
                "start it with hived train run -- torchrun ...",
                file=sys.stderr,
            )
        self._share_state(joins=self.rank != 0)
        self._watch_gradients()

    def _rank_0_lost(self, pid: int) -> str:
        if os.getppid() != pid:
            return "rank 0 has died"
        return "" if group.store_file(self._stem, self.groups).exists() else "rank 0 has left its loop"

    def _watch_over(self, watch: Watch) -> None:
        self._watch = watch
        if self._running is not None:
            self._running.every_second = watch.look

    # -- between two mini-batches: asked by the loader

    def begin_pass(self) -> int:
        """The global batch that the pass over the data begins with."""
        if self._passed:
            raise RuntimeError(
                "an elastic job passes over its data once in every epoch of team.epochs(): "
                "use a DataLoader for what is not training"
            )
        self._passed = True
        if self._joined:
            # dropout from a stream of its own; not before now: a data set made of random numbers is to be the same
            torch.manual_seed(torch.initial_seed() + _STREAMS * (self.groups * self.workers + self.rank))
            self._joined = False
        return self._start

    def between(self, batch: int) -> None:
        """Before global batch ``batch``: carry out what was agreed. A worker that leaves does not return."""
        self.part = None
        if not self._stepped:  # in the middle of an accumulation of gradients: new workers have none of them
            return
        if self.workers == 1 and self._recruiter is not None:
            self._agreed = self._recruiter.look(1)
        if self._agreed:
            self._start = batch
            agreed, self._agreed = self._agreed, 0
            self._change_to(agreed)

    def hand_out(self, part: Part) -> None:
        """The script gets a part."""
        self.part = part
        self._stepped = self._averaged = False

    # -- gradients

    def _watch_gradients(self) -> None:
        """With several workers: average at the end of every backward pass, before anything looks at gradients.

        Not only in the optimizer's step: clipping and ``GradScaler`` come before it, and must see the same everywhere.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.workers > 1:
            self._hooks += [each.register_post_accumulate_grad_hook(self._accumulated) for each in self._parameters()]

    def _accumulated(self, parameter: Any) -> None:
        backward = torch._C._current_graph_task_id()
        if backward != self._backward and self.part is not None:
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        part = self.part
        if part is None:
            return
        self._averaged = True
        wish = self._recruiter.look(self.workers) if self._recruiter is not None and not self._agreed else 0
        with self._watch.waiting():
            self._agreed = group.average(self._parameters(), part.weight, part.batch, wish) or self._agreed

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        closure = any(each is not None for each in arguments[1:]) or keywords.get("closure") is not None
        if self.workers > 1 and not self._averaged and not closure:  # the script has set its gradients by itself
            self._average()

    def _after_step(self, *_: Any) -> None:
        self._stepped = True

    def _parameters(self) -> list[Any]:
        """Those of the optimizer, now."""
        return [each for options in self._optimizer.param_groups for each in options["params"] if each.requires_grad]

    # -- another number of workers

    def _change_to(self, target: int) -> None:
        """All workers of the team now: be ``target`` from the next mini-batch on."""
        began = time.monotonic()
        before = self.workers
        if self.rank >= target:
            self._leave()
        if self._recruiter is not None and target > before:
            self._recruiter.invite(self.groups + 1, before, target)
        try:
            self._change(target, before, joins=False)
        except Exception as error:
            if target < before:
                raise
            # a new worker has died in these milliseconds: all others find that, and go on as they were
            if self._recruiter is not None:
                self._recruiter.drop(before, f"a new worker was lost on joining: {error}")
            self._change(before, before, joins=False)
        else:
            self.change_s = time.monotonic() - began
            self._report()
        if self._recruiter is not None:
            self._recruiter.settled(self.workers)

    def _change(self, target: int, before: int, joins: bool) -> None:
        group.disconnect()
        old, self.groups = self.groups, self.groups + 1
        if target > 1:
            group.connect(self._stem, self.groups, self.rank, target, group.backend(self._device, target))
            if target > before:
                self._share_state(joins)
            if joins:
                self.workers = target
                self._report()
            group.confirm()
        self.workers = target
        if self.rank == 0:
            group.store_file(self._stem, old).unlink(missing_ok=True)
            if target == 1:
                group.store_file(self._stem, self.groups).unlink(missing_ok=True)
        self._watch_gradients()

    def _share_state(self, joins: bool) -> None:
        """Rank 0 broadcasts everything; the others receive it, and new ones take it over."""
        if self.rank == 0:
            group.send_state(
                {
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "also": [each.state_dict() for each in self._also],
                    "position": (self.epoch, self._start),
                    "mini_batches": self._running.iterations if self._running is not None else 0,
                }
            )
            return
        state = group.receive_state(self._device)
        if not joins:
            return
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for each, its in zip(self._also, state["also"], strict=True):
            each.load_state_dict(its)
        self.epoch, self._start = state["position"]
        if self._running is not None:
            # all count alike: it is by this number that they agree where to suspend
            self._running.iterations = state["mini_batches"]

    def _report(self) -> None:
        if self._running is not None:
            self._running.device = self._device
            self._running.report_ranks(self.rank, self.workers, seconds=self.change_s)

    def _leave(self) -> None:
        """This worker is not needed any more: its script ends here, with exit code 0."""
        self._finished = True
        group.disconnect()
        if self._running is not None:
            self._running.leave()
        raise SystemExit(0)

    # -- the end

    def _finish(self) -> None:
        """The last epoch is over."""
        if not self._finished:
            self._finished = True
            self._agreed = 0
            group.disconnect()
            if self._recruiter is not None:
                group.store_file(self._stem, self.groups).unlink(missing_ok=True)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        # a loop that an error has left has finished too: the others may be within theirs
        orderly = self._finished and getattr(sys, "last_value", None) is None
        if not orderly and self.groups:  # the script has failed: the others are not to wait for this worker
            group.disconnect()
        if self._recruiter is not None:
            self._recruiter.end(orderly)

    def _tensors(self) -> Iterator[Any]:
        yield from self._model.parameters()
        yield from self._parameters()


class Loader:
    """This worker's parts of the global batches of an epoch.

    A worker that gets no sample of a global batch, because it has fewer than there are workers, gets its first sample
    all the same, so that its script steps the optimizer and the scheduler as all do; its gradients do not count.
    """

    def __init__(
        self, team: Team, dataset: Dataset[Any], shuffle: bool, seed: int, drop_last: bool, options: dict[str, Any]
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError("an elastic job needs a data set with numbered samples: parts of a stream cannot be told")
        if wrong := {"batch_size", "sampler", "batch_sampler"} & options.keys():
            raise TypeError(f"team.loader() takes no {', '.join(sorted(wrong))}: the team's global batch is split")
        self._team, self._dataset = team, dataset
        self._shuffle, self._seed, self._options = shuffle, seed, options
        self._samples: int = len(dataset)
        most = team.global_batch
        self._batches = self._samples // most if drop_last else -(-self._samples // most)

    def __len__(self) -> int:
        """Global batches of an epoch."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        team = self._team
        batch = team.begin_pass()
        order = self._order()
        fetched: Iterator[Any] = iter(())
        group_of_fetched = -1
        try:
            while True:
                team.between(batch)
                if batch >= self._batches:
                    return
                if group_of_fetched != team.groups:  # what was fetched in advance is of another division
                    fetched, group_of_fetched = self._fetch(order, batch), team.groups
                sample = next(fetched)
                team.hand_out(self._part(order, batch))
                yield sample
                batch += 1
        finally:
            team.part = None

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._samples))
        generator = torch.Generator().manual_seed(self._seed + self._team.epoch)
        order: list[int] = torch.randperm(self._samples, generator=generator).tolist()
        return order

    def _part(self, order: list[int], batch: int) -> Part:
        team = self._team
        whole = order[batch * team.global_batch : (batch + 1) * team.global_batch]
        first, end = (len(whole) * rank // team.workers for rank in (team.rank, team.rank + 1))
        return Part(batch, len(whole), tuple(whole[first:end]))

    def _fetch(self, order: list[int], batch: int) -> Iterator[Any]:
        most = self._team.global_batch
        parts = [
            list(self._part(order, number).indices) or order[number * most : number * most + 1]
            for number in range(batch, self._batches)
        ]
        # of its own: the script's random numbers do not depend on how often the team changes
        generator = torch.Generator().manual_seed(self._seed + self._team.epoch)
        options = {"generator": generator, **self._options}
        return iter(DataLoader(self._dataset, batch_sampler=parts, **options))


_team: Team | None = None


def join_or_begin(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, global_batch: int, also: Sequence[Stateful]
) -> Team:
    """The team of this process: a new one, that which has started this process, or that of a launcher."""
    global _team
    if _team is not None:
        raise RuntimeError("this process is a worker of an elastic job already")
    _check(model, optimizer, global_batch)
    running = starting.running()
    team = Team(model, optimizer, global_batch, also, running)
    if recruiter.JOIN in os.environ:
        team.begin_with(recruiter.invitation())
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        team.begin_with_launcher()
    else:
        team.begin_alone()
    _team = team
    return team


def _check(model: torch.nn.Module, optimizer: torch.optim.Optimizer, global_batch: int) -> None:
    if global_batch < 1:
        raise ValueError(f"a global batch has at least one sample, not {global_batch}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise RuntimeError("an elastic job makes its process groups itself: do not call init_process_group")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS decides by its own loss how often it evaluates: workers would not agree")
    if any(getattr(each, "sparse", False) is True for each in model.modules()):
        raise TypeError("sparse gradients cannot be averaged among workers: build the embeddings with sparse=False")
    if os.environ.get("WORLD_SIZE", "1") != os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")):
        raise RuntimeError("an elastic job has all its workers on one machine")
