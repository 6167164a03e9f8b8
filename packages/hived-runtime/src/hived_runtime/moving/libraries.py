"""Trainers of libraries as a state that moves: Transformers' ``Trainer``, and Lightning's.

The loop is the library's, and so is the checkpoint by which it is begun again: a trainer is a ``Stateful`` whose state
are the files of one. In the destination its training begins with these files, and comes to the batch that is next in
:meth:`NamedState.passes`: random states and items are those of any loop, the move is committed there, and what the
checkpoint lacks (sums that are logged, gradients) is taken over in place.
"""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch

from .named import MoveError, NamedState, load_more, more_of, not_plain
from .randomness import RandomStates, generators_of


class LibraryTrainer(ABC):
    """A trainer as ``Stateful``."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.named: NamedState  #: by which it is moved
        self.is_whole = True  #: whether there is nothing of a step that has begun
        self._runs = 0  #: times that it has trained
        self._folder: Path | None = None  #: in the destination, with the checkpoint
        self._open: list[int] = []  #: files of it

    def state_dict(self) -> dict[str, Any]:
        """The files of a checkpoint, and what it lacks."""
        if self._runs != 1:
            raise MoveError("it trains for the second time, and would begin with the first")
        with tempfile.TemporaryDirectory() as folder:
            self._save(Path(folder))
            paths = [path for path in Path(folder).rglob("*") if path.is_file()]
            files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return {"files": files, "model": more_of(self._model()), "values": [_values(each) for each in self._parts()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the training begin with the files; then, called once more at the batch that is next, take the rest."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hived-move-"))
            for name, content in state["files"].items():  # in memory: gone with this process, if the move fails
                self._open.append(os.memfd_create(name))
                with open(self._open[-1], "wb", closefd=False) as file:
                    file.write(content)
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(f"/proc/{os.getpid()}/fd/{self._open[-1]}")
            return
        load_more(self._model(), state["model"])
        for part, values in zip(self._parts(), state["values"], strict=True):
            vars(part).update(values)
        shutil.rmtree(self._folder)
        for descriptor in self._open:
            os.close(descriptor)
        self._folder, self._open = None, []

    @abstractmethod
    def _save(self, folder: Path) -> None:
        """Write a checkpoint."""

    @abstractmethod
    def _model(self) -> Any:
        """The module that is trained."""

    @abstractmethod
    def _parts(self) -> list[Any]:
        """Objects whose plain attributes a checkpoint lacks."""


class TransformersTrainer(LibraryTrainer):
    """``transformers.Trainer``. A point is before the batches of a step are fetched."""

    def __init__(self, trainer: Any) -> None:
        from transformers import TrainerCallback

        super().__init__(trainer)
        self._fetch, self._train = trainer.get_batch_samples, trainer.train
        trainer.get_batch_samples, trainer.train = self._fetched, self._trained
        self._loader: Any = None
        self._began = RandomStates.now()  #: its pass
        self._theirs: Any = None  #: iterator of the trainer, in whose place is one of ours
        self._batches: Iterator[Any] = iter(())
        outer = self

        class Epochs(TrainerCallback):  # type: ignore[misc]  # Transformers is not typed for us
            def on_epoch_begin(self, *_: Any, train_dataloader: Any, **more: Any) -> None:
                outer._loader, outer._began = train_dataloader, RandomStates.now(generators_of(train_dataloader))

        trainer.add_callback(Epochs)

    def _trained(self, *arguments: Any, **named: Any) -> Any:
        self._runs += 1
        if self._folder is not None:
            arguments, named["resume_from_checkpoint"] = arguments[1:], str(next(self._folder.iterdir()))
        return self._train(*arguments, **named)

    def _fetched(self, iterator: Any, *more: Any) -> Any:
        if iterator is not self._theirs:
            self._theirs = iterator
            if not isinstance(iterator, GeneratorType):  # it has drawn its numbers, and ours is to draw the same
                self._began.set(generators_of(self._loader))
            self._batches = self.named.passes(self._loader)
        self.is_whole = True
        first = list(islice(self._batches, 1))
        self.is_whole = False
        return self._fetch(chain(first, self._batches), *more)

    def _save(self, folder: Path) -> None:
        trainer = self._trainer
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise MoveError("its weights are sharded over ranks")
        here = {"output_dir": str(folder), "push_to_hub": False, "save_only_model": False, "save_total_limit": None}
        with _changed(trainer.args, **here), _changed(type(trainer.args), should_save=True):  # every rank has its own
            trainer._save_checkpoint(trainer.model_wrapped, None)
        if trainer.args.process_index:  # but of the weights, which Transformers writes on rank 0 alone
            torch.save(trainer.model.state_dict(), next(folder.iterdir()) / "pytorch_model.bin")
        for path in folder.glob("*/rng_state*"):  # those of the state are set before batches are fetched, these after
            path.unlink()

    def _model(self) -> Any:
        return self._trainer.model

    def _parts(self) -> list[Any]:
        trainer = self._trainer
        stateful = [each for each in trainer.callback_handler.callbacks if hasattr(each, "state")]
        return [trainer, trainer.state, trainer.control, *stateful]


class LightningTrainer(LibraryTrainer):
    """``lightning.pytorch.Trainer``. A point is between two batches."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._process, self._fit = trainer.strategy.process_dataloader, trainer.fit
        trainer.strategy.process_dataloader, trainer.fit = self._processed, self._fitted

    def state_dict(self) -> dict[str, Any]:
        """And the sums of an epoch that are logged. Metrics of the model keep their own, or do not."""
        results = self._trainer.fit_loop.epoch_loop._results
        sums = {name: _reduced_by(each, None) for name, each in results.items() if each.is_tensor}
        return {**super().state_dict(), "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """And these sums, where the rest is taken."""
        super().load_state_dict(state)
        if self._folder is None:
            reduce = self._trainer.strategy.reduce
            sums = {name: _reduced_by(each, reduce) for name, each in state["sums"].items()}
            self._trainer.fit_loop.epoch_loop._results.update(sums)

    def _fitted(self, *arguments: Any, **named: Any) -> Any:
        self._runs += 1
        if self._folder is not None:
            arguments, named["ckpt_path"] = arguments[:4], str(next(self._folder.iterdir()))
            if "weights_only" in inspect.signature(self._fit).parameters:
                named["weights_only"] = False  # it is of this job's own process
        return self._fit(*arguments, **named)

    def _processed(self, loader: Any) -> Any:
        loader = self._process(loader)
        return _Passes(loader, self.named) if self._trainer.training else loader

    def _save(self, folder: Path) -> None:
        trainer, strategy, fetcher = self._trainer, self._trainer.strategy, self._trainer.fit_loop._data_fetcher
        if trainer.world_size > 1 and not (
            type(strategy).__name__ == "DDPStrategy" and strategy.cluster_environment.creates_processes_externally
        ):
            raise MoveError("of several ranks, only those of DDP that torchrun has started move")
        if not isinstance(trainer.train_dataloader, _Passes):
            raise MoveError("it trains on several loaders")
        if fetcher.length is None or not hasattr(fetcher, "prefetch_batches"):
            raise MoveError("its batches are fetched before it is their turn: its loader has no length")
        with _changed(type(strategy), is_global_zero=True):  # every rank has its own
            trainer.save_checkpoint(folder / "moved.ckpt", weights_only=False)

    def _model(self) -> Any:
        return self._trainer.lightning_module

    def _parts(self) -> list[Any]:
        loop = self._trainer.fit_loop
        return [loop, loop.epoch_loop, self._trainer._logger_connector]


class _Passes:
    """A loader as it is, but for its passes, which are those of a state."""

    def __init__(self, loader: Any, named: NamedState) -> None:
        vars(self).update(_loader=loader, _passes=named.passes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._passes(self._loader))


def _reduced_by(result: Any, function: Any) -> Any:
    """A sum that Lightning logs, with another function that reduces it over ranks: that is of the process."""
    found = copy(result)
    found.meta = replace(result.meta, _sync=replace(result.meta.sync, fn=function))
    return found


def adapted(trainer: Any) -> LibraryTrainer:
    """A trainer as ``Stateful``; from here on its passes are those of its state."""
    if hasattr(trainer, "fit_loop"):
        return LightningTrainer(trainer)
    if hasattr(trainer, "get_batch_samples"):
        return TransformersTrainer(trainer)
    raise TypeError(f"{type(trainer).__qualname__} is no trainer of Transformers or Lightning")


def _values(part: Any) -> dict[str, Any]:
    """Its plain attributes, without data sets, which may be lists."""
    return {name: each for name, each in vars(part).items() if not_plain(each) is None and "dataset" not in name}


@contextmanager
def _changed(thing: Any, **values: Any) -> Iterator[None]:
    """With other attributes, for a while."""
    before = {name: getattr(thing, name) for name in values}
    try:
        for name, value in values.items():
            setattr(thing, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)
