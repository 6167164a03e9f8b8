"""Scripts whose loop is that of a library move, and end bit for bit as they do alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hived_control.commands import RefusedError
from hived_runtime.moving.libraries import adapted
from tests.runtime.jobs import PATIENCE_S, Job, until

#: data that are augmented at random: they are different every time that they are read
DATA = """
import sys, torch
import hived_runtime
from pacing import pace
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

result = sys.argv[1]
once = Path(result + ".once").exists()
Path(result + ".once").touch()

class Data(Dataset):
    def __init__(self, size):
        self.x = torch.randn(size, 8)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, at):
        return self.x[at] + 0.1 * torch.randn(8), (self.x[at].sum() > 0).long()

def layers():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 2)
    )

def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)
"""

#: with an evaluation, checkpoints of its own, of which two are kept, and a last step of an epoch that is shorter
TRANSFORMERS = """
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = layers()
    def forward(self, x, labels):
        return {"loss": loss_of(self.net, x, labels)}

def collated(items):
    return {"x": torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}

class Pace(TrainerCallback):
    def on_train_begin(self, *_, **more):
        BEGIN
    def on_step_end(self, arguments, state, control, **more):
        pace(state.global_step, state.max_steps, Path(result + ".hurry"))

arguments = TrainingArguments(
    output_dir=result + ".out", num_train_epochs=20, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=1e-2, warmup_steps=10, logging_steps=7, eval_strategy="steps", eval_steps=50, save_steps=50,
    save_total_limit=2, metric_for_best_model="loss", load_best_model_at_end=True, seed=3, report_to=[], use_cpu=True,
    prediction_loss_only=True, disable_tqdm=True,
)
torch.manual_seed(3)
callbacks = [Pace, EarlyStoppingCallback(1000)]
trainer = Trainer(Model(), arguments, collated, Data(124), Data(8), callbacks=callbacks)
hived_runtime.trainer(trainer)
trainer.train()
timed = ("runtime", "per_second")
log = [{key: value for key, value in each.items() if not key.endswith(timed)} for each in trainer.state.log_history]
patience = callbacks[1].early_stopping_patience_counter
torch.save(dict(model=trainer.model.state_dict(), log=log, patience=patience), result)
"""

#: evaluated within epochs, with a schedule by what is logged of an epoch
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import EarlyStopping

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = layers()
        self.means = []
    def training_step(self, batch, at):
        loss = loss_of(self.net, *batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss
    def validation_step(self, batch, at):
        self.log("held", loss_of(self.net, *batch))
    def on_train_batch_end(self, *_):
        pace(self.trainer.fit_loop.total_batch_idx + 1, 620, Path(result + ".hurry"))
    def on_train_epoch_end(self):
        print("mean", self.trainer.current_epoch, self.trainer.callback_metrics["loss_epoch"].item(), flush=True)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        step = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.98)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.9)
        return [optimizer], [{"scheduler": step, "interval": "step"}, {"scheduler": plateau, "monitor": "loss_epoch"}]

lightning.seed_everything(3)
model = Model()
trainer = lightning.Trainer(
    max_epochs=20, accumulate_grad_batches=2, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    logger=False, enable_model_summary=False, val_check_interval=10, callbacks=EarlyStopping("held", patience=1000),
)
hived_runtime.trainer(trainer)
trainer.fit(model, DataLoader(Data(124), 4, shuffle=True, num_workers=1), DataLoader(Data(8), 4))
metrics = {key: value.item() for key, value in trainer.callback_metrics.items()}
rate = trainer.optimizers[0].param_groups[0]["lr"]
torch.save(dict(model=model.state_dict(), metrics=metrics, rate=rate, steps=trainer.global_step), result)
"""

#: a loop of its own: its loader reads one batch ahead, and nobody names what counts the batches of a step
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

set_seed(3)
accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
model = layers()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.95)
prepared = accelerator.prepare(model, optimizer, scheduler, DataLoader(Data(124), 4, shuffle=True))
model, optimizer, scheduler, loader = prepared
state = hived_runtime.state(model=model, optimizer=optimizer, scheduler=scheduler, step=0)
for epoch in state.range(20):
    for x, y in state.each(loader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, x, y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        state.step += 1
        pace(state.step, 620, Path(result + ".hurry"))
torch.save(dict(model=model.state_dict(), step=state.step, rate=scheduler.get_last_lr()), result)
"""
#: a loader that draws its numbers before any batch is fetched, as Transformers' own do not
OWN_LOADER = """
def loader_of(self):
    return DataLoader(self.train_dataset, 4, shuffle=True, num_workers=1, collate_fn=collated)
Trainer.get_train_dataloader = loader_of
trainer = Trainer("""
SCRIPTS = {
    "transformers": TRANSFORMERS.replace("BEGIN", "pass"),
    "own loader": TRANSFORMERS.replace("BEGIN", "pass").replace("\ntrainer = Trainer(", OWN_LOADER),
    "lightning": LIGHTNING,
    "accelerate": ACCELERATE,
}


@pytest.mark.parametrize("library", SCRIPTS)
def test_moved_twice_ends_as_alone(start: Callable[..., Job], library: str, tmp_path: Path) -> None:
    """Within an epoch, with accumulated gradients."""
    job = start(DATA + SCRIPTS[library])
    for _ in range(2):
        job.job.migrate("cpu", PATIENCE_S)
        there = job.mini_batches()
        until(lambda after=there: job.mini_batches() > after + 2)  # type: ignore[misc]
    assert job.runs(), "it has moved before its end"
    job.assert_same_as_alone()
    kept = [sorted(path.name for path in tmp_path.glob(f"{name}.pt.out/*")) for name in ("result", "alone")]
    assert kept[0] == kept[1], "checkpoints of the script's own"
    means = [line for line in job.output().splitlines() if line.startswith("mean")]
    assert means == [line for line in (tmp_path / "alone.log").read_text().splitlines() if line.startswith("mean")]


def test_library_that_cannot_go_on(start: Callable[..., Job]) -> None:
    """The destination is given up before it has the job, which goes on where it is."""
    job = start(DATA + TRANSFORMERS.replace("BEGIN", "assert not once, 'no room'"))
    with pytest.raises(RefusedError, match="AssertionError: no room"):
        job.job.migrate("cpu", PATIENCE_S)
    job.trains(job.mini_batches())
    Path(f"{job.result}.once").unlink()
    job.assert_same_as_alone()


def test_other_trainers_are_refused() -> None:
    with pytest.raises(TypeError, match="Path is no trainer of Transformers or Lightning"):
        adapted(Path())
