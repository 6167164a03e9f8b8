"""Makes a PyTorch training job manageable: ``import hived_runtime`` in its script, or ``hived train run -- COMMAND``.

It finds the mini-batches, reports progress, and obeys: suspend, resume, limits of memory and compute, move, grow and
shrink (Gandiva, OSDI'18; AntMan, OSDI'20). docs/explanation/runtime.md says what is promised for which jobs. It needs
torch and NumPy.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import starting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.nn import Module
    from torch.optim import Optimizer

    from .elasticity.team import Stateful, Team
    from .moving.named import NamedState

__all__ = ["elastic", "pause_point", "state", "trainer"]


@contextmanager
def pause_point() -> Iterator[None]:
    """A place at which the job may be suspended, in a phase without optimizer steps. Costs nothing else.

    ::

        for text in texts:
            with hived_runtime.pause_point():
                decode(text)
    """
    process = starting.running()
    if process is not None and process.pending():
        process.boundary()
    yield


def state(**named: Any) -> NamedState:
    """Name what a training job is: with it a job moves, to another device or host, and goes on bit for bit.

    ::

        state = hived_runtime.state(model=model, optimizer=optimizer, scheduler=scheduler, best=0.0)
        for epoch in state.range(90):
            for x, y in state.each(loader):
                optimizer.zero_grad()
                loss_function(model(x), y).backward()
                optimizer.step()
            state.best = max(state.best, evaluate(model))

    Named are all things that change as it trains: what has ``state_dict`` and ``load_state_dict``, random generators,
    tensors, and plain values, which are attributes. Not random generators of the process, gradients, and how far these
    loops are: those are added. The process that takes over runs the script to this call, and from there on as if it had
    been here all the time; what stands between the heads of the loops runs again, and what it does to what is named is
    undone. In a loop of its own a script calls
    ``state.point()`` where all of its state is in what it has named.

    Without a controller this costs nothing, and changes nothing.
    """
    import torch  # noqa: F401  # with which the runtime starts

    from .moving.named import NamedState

    process = starting.running()
    made = NamedState(named, (lambda: None) if process is None else process.point)
    if process is not None:
        process.name_state(made)
    return made


def trainer(trainer: Any) -> None:
    """Name a trainer of Transformers or Lightning, before it trains: the job moves as one that names its :func:`state`.

    ::

        trainer = Trainer(model, arguments, train_dataset=data)
        hived_runtime.trainer(trainer)
        trainer.train()

    What is handed over are the files of a checkpoint, by which the library goes on in the process that takes over.
    """
    from .moving.libraries import adapted
    from .moving.named import NamedState

    process = starting.running()
    if process is not None:
        made = adapted(trainer)
        made.named = NamedState({"trainer": made}, lambda: process.point() if made.is_whole else None)
        process.name_state(made.named)


def elastic(model: Module, optimizer: Optimizer, global_batch: int, also: Sequence[Stateful] = ()) -> Team:
    """Declare a data-parallel job elastic: ``hived train scale JOB --workers N`` changes it while it trains.

    ::

        team = hived_runtime.elastic(model, optimizer, global_batch=48, also=[scheduler])
        for epoch in team.epochs(3):
            for x, y in team.loader(dataset, shuffle=True, seed=0):
                optimizer.zero_grad()
                loss_function(model(x), y).backward()
                optimizer.step()
        if team.rank == 0:
            torch.save(model.state_dict(), "model.pt")

    Every global batch (samples, of all workers) is split among the workers. The loss is a mean over the samples that a
    worker gets; gradients are averaged by the number of samples, at the end of every backward pass within the loop, so
    clipping and accumulating them is as with one worker. A new worker runs the same command. It waits here until all
    change to the new number, at the end of a mini-batch, and takes over the state of the model, the optimizer and
    ``also``; so the data set is better built before. A worker that is not needed leaves by ``SystemExit`` within the
    loop. Rank 0 never leaves, and ends last. What only one process may do belongs below ``if team.rank == 0``.

    Without a controller there is one worker, and nothing is different from a script without this. A new worker that
    fails changes nothing. A worker that dies later ends the job with an error, as in every data-parallel job. Started
    by torchrun on one machine, the job begins with its workers; torchrun waits for rank 0 when others have left.
    """
    from .elasticity.team import join_or_begin

    return join_or_begin(model, optimizer, global_batch, also)


starting.on_import_of_torch()
