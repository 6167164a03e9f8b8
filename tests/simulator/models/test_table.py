"""Reading a table of job models, the row for any other, perturbed tables, and errors in one line."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from hived.errors import ModelError
from hived.simulator.models import Models
from hived.simulator.models.table import MOST_CAPACITY, QUANTITIES

from .values import GAINS

MODELS = Models.load()
TEXT = files("hived.simulator.models").joinpath("models.csv").read_text("utf-8")
HEADER = TEXT.partition("\n")[0]
ANY = "*,other,1,1,8,0.5,0.6,1,1,1,2,mine\n"
A = "a,cv,0.5,0.6,4,1,0.2,0.9,0.8,0.1,1,mine"
SHARES = ("utilization", "across_sockets", "across_nodes")


def read(folder: Path, text: str) -> Models:
    (folder / "m.csv").write_text(text, "utf-8")
    return Models.load(folder / "m.csv")


def refusal(folder: Path, text: str) -> str:
    """The message with which a table of this text is refused, its folder left out."""
    with pytest.raises(ModelError) as error:
        read(folder, text)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


def row(**changes: str) -> str:
    """A table whose third line has these changes."""
    values = dict(zip(HEADER.split(","), A.split(","), strict=True))
    return f"{HEADER}\n{ANY}" + ",".join({**values, **changes}.values()) + "\n"


def test_models_of_the_papers_and_families() -> None:
    assert [model.model for model in MODELS] == [
        *GAINS,
        *("VGG16", "InceptionV3", "GNMT", "DeepSpeech", "ESPnet", "DeepFM", "GCN", "LeNet-like", "VGG-like"),
        *("cv", "nlp", "speech", "*"),
    ]
    assert len(MODELS) == len(list(MODELS))


def test_an_unknown_model_is_any_other() -> None:
    assert MODELS.of("GPT") is MODELS.of("") is MODELS.of("*")
    assert MODELS.of("VAE") is not MODELS.of("*")
    assert "VAE" in MODELS
    assert "GPT" not in MODELS


def test_a_file_takes_the_place_of_the_table(tmp_path: Path) -> None:
    """Its columns may have any order, others among them; the file here can be copied, and go to other processes."""
    models = read(tmp_path, row(capacity="1.2"))
    assert [model.model for model in models] == ["*", "a"]
    assert models.of("a").capacity == 1.2
    assert models.of("VAE").model == "*"
    reverse = "\n".join(",".join(line.split(",")[::-1]) for line in (HEADER, *ANY.splitlines()))
    assert list(read(tmp_path, reverse)) == [replace(MODELS.of("*"), source="mine")]
    assert list(read(tmp_path, TEXT)) == list(MODELS)
    noted = "\n".join(f"{line},{more}" for line, more in zip(GOOD.splitlines(), ("note", "x", "idle:3"), strict=True))
    assert list(read(tmp_path, noted)) == list(read(tmp_path, GOOD))
    assert list(pickle.loads(pickle.dumps(MODELS))) == list(MODELS)


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("utilization", "87", "utilization is '87': it must be a finite number above 0 and at most 1, a share"),
        ("capacity", "44.6", "capacity is '44.6': it must be a finite number above 0 and at most 10, a share"),
        ("capacity", "0", "capacity is '0': it must be a finite number above 0 and at most 10"),
        ("memory_gib", "inf", "memory_gib is 'inf': it must be a finite number above 0"),
        ("memory_gib", "0.5", "memory_min_gib is 1: it must be at most memory_gib, 0.5"),
        ("memory_min_gib", "nan", "memory_min_gib is 'nan': it must be a finite number of at least 0"),
        ("batch_s", "", "batch_s is '': it must be a finite number above 0"),
        ("across_nodes", "1.1", "across_nodes is '1.1': it must be a finite number above 0 and at most 1, a share"),
        ("suspend_s", "-1", "suspend_s is '-1': it must be a finite number of at least 0"),
        ("migrate_s", "1e999", "migrate_s is '1e999': it must be a finite number of at least 0"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, column: str, text: str, message: str) -> None:
    assert refusal(tmp_path, row(**{column: text})).startswith(f"m.csv:3: 'a': {message}")


GOOD = row()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("capacity", "capacty", 1),
            "1: column 'capacity' is missing: did you mean it by 'capacty'?",
        ),
        (
            GOOD.replace(",source", "", 1).replace(",mine", ""),
            "1: column 'source' is missing: the header must hold model,family,",
        ),
        (GOOD.replace("family", "model", 1), "1: column 'model' is there twice: remove one"),
        (GOOD + A + "\n", "4: model 'a' is already in row 3: remove one"),
        (GOOD.replace(ANY, ""), " no row '*': add one, for jobs whose model is unknown or not in the table"),
        (row(model=""), "3: '': model is empty: name it as in traces, or '*' for any other"),
        (GOOD + "b,cv\n", "4: the row has 2 fields, the header 12"),
        ("", " the file is empty: it needs a header and at least one row"),
    ],
    ids=lambda text: text[-20:],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(f"m.csv:{message}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.csv: no such file: check the path"):
        Models.load(tmp_path / "none.csv")


def test_a_model_is_within_its_bounds() -> None:
    with pytest.raises(ModelError, match=r"^utilization is 1.2: it must be a finite number above 0 and at most 1$"):
        replace(MODELS.of("*"), utilization=1.2)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("factor", [0.01, 0.7, 1.3, 100])
def test_one_quantity_is_scaled(quantity: str, factor: float) -> None:
    assert MODELS.scaled(quantity, factor).file == f"models.csv, {quantity} x{factor:g}"
    most = {**dict.fromkeys(SHARES, 1.0), "capacity": MOST_CAPACITY}.get(quantity, math.inf)
    for before, after in zip(MODELS, MODELS.scaled(quantity, factor), strict=True):
        most_here = min(most, before.memory_gib) if quantity == "memory_min_gib" else most
        assert getattr(after, quantity) == min(getattr(before, quantity) * factor, most_here)
        same = {quantity: getattr(before, quantity)}
        if quantity == "memory_gib":
            assert after.memory_min_gib == min(before.memory_min_gib, after.memory_gib)
            same["memory_min_gib"] = before.memory_min_gib
        assert replace(after, **same) == before


def test_the_law_is_scaled() -> None:
    changed = MODELS.scaled("wait", 0.5)
    assert (changed.law.wait, changed.law.overlap) == (MODELS.law.wait / 2, MODELS.law.overlap)
    assert list(changed) == list(MODELS)
    assert changed.scaled("capacity", 1.1).law == changed.law
    assert MODELS.scaled("overlap", 0).law.overlap == 0


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"^'capacty' cannot be scaled \(did you mean `capacity`\?\): give one of util"
    ):
        MODELS.scaled("capacty", 1.3)
    with pytest.raises(ModelError, match=r"^'phases' cannot be scaled"):
        MODELS.scaled("phases", 1.3)
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ModelError, match="give a finite factor above 0"):
            MODELS.scaled("capacity", factor)
