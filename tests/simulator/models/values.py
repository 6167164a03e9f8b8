"""The papers' numbers in the table of models, by the ids of ``docs/reference/models.md``: typed in a second time."""

from __future__ import annotations

from typing import NamedTuple


class Packing(NamedTuple):
    """A row of Gandiva's Table 1 (OSDI'18), on a P40."""

    utilization: float  #: percent
    sliced: float  #: mini-batches per second of copies that are time-sliced
    packed: float  #: mini-batches per second of copies that are packed, the most over their number
    gain: int  #: percent, as printed


#: G45
TABLE_1 = {
    "VAE": Packing(8.7, 81.8, 419.3, 412),
    "SR": Packing(14.1, 40.3, 145.2, 260),
    "RHN": Packing(61.6, 10.1, 14.8, 46),
    "SCRNN": Packing(66.8, 16.7, 23.3, 39),
    "MI-LSTM": Packing(76.2, 22.2, 25.9, 17),
    "LSTM": Packing(87.2, 63.8, 53.0, -16),
    "ResNet-50": Packing(94.0, 10.3, 9.0, -13),
    "ResNext-50": Packing(98.9, 83.6, 74.4, -11),
}
GAINS = {name: row.gain for name, row in TABLE_1.items()}

#: by id, row and column: what the papers have, as a number or, of phases, as text
LEDGER: dict[str, dict[tuple[str, str], float | str]] = {
    "G45": {
        key: value
        for name, row in TABLE_1.items()
        for key, value in (
            ((name, "utilization"), row.utilization / 100),
            # utilization * (1 + gain), of the rates: the printed gain is rounded
            ((name, "capacity"), row.utilization / 100 * row.packed / row.sliced),
            # copies that are time-sliced make the progress of one alone
            ((name, "batch_s"), 1 / row.sliced),
        )
    },
    "G3": {("VGG16", "across_sockets"): 0.6, ("ResNet-50", "across_sockets"): 1},
    "G6": {
        ("ResNet-50", "across_nodes"): 1 - 0.47,
        ("InceptionV3", "across_nodes"): 1 - 0.30,
        ("DeepSpeech", "across_nodes"): 1 - 0.05,
    },
    # 23 GB to 0.3 GB on 4 GPUs; a model of 0.4 GB, three times as much at most
    "G7": {
        ("ResNet-50", "memory_gib"): 23 / 4,
        ("ResNet-50", "memory_min_gib"): 0.3 / 4,
        ("ResNet-50", "checkpoint_gib"): 0.3 / 4,
        ("GNMT", "memory_gib"): 3 * 0.4,
        ("GNMT", "memory_min_gib"): 0.4,
        ("GNMT", "checkpoint_gib"): 0.4,
    },
    # the upper ends: below 100 ms for models of images, up to 1 s for large models of language
    "G13": {
        **{
            (name, "suspend_s"): 0.1
            for name in ("VAE", "SR", "ResNet-50", "ResNext-50", "VGG16", "InceptionV3", "LeNet-like", "VGG-like")
        },
        **{(name, "suspend_s"): 1 for name in ("RHN", "SCRNN", "MI-LSTM", "LSTM", "GNMT")},
    },
    # 1 to 2 s: the upper end, for whoever has no number of its own
    "G18": {
        (name, "migrate_s"): 2
        for name in (
            *("VAE", "SR", "RHN", "SCRNN", "MI-LSTM", "LSTM", "ResNext-50", "VGG16", "InceptionV3", "GNMT"),
            *("ESPnet", "DeepFM", "GCN", "LeNet-like", "VGG-like"),
        )
    },
    "G49": {("ResNet-50", "migrate_s"): 35 * (1 - 0.98)},
    "G50": {("DeepSpeech", "migrate_s"): 3.5, ("DeepSpeech", "checkpoint_gib"): 1.4},
    "A4": {("DeepFM", "phases"): "idle:275;train"},
    "A5": {
        ("ESPnet", "utilization"): 0.70,
        ("ESPnet", "memory_gib"): 19,
        ("ESPnet", "memory_min_gib"): 3.6,
        ("ESPnet", "phases"): "train:1400;decode:200;idle:100",
    },
    "A43": {("GCN", "memory_gib"): 3.5},
    "A46": {("VGG16", "memory_gib"): 17, ("InceptionV3", "memory_gib"): 16},
}
#: what the rows of families are the means of
FAMILIES = {
    "cv": ("ResNet-50", "VGG16", "InceptionV3"),
    "nlp": ("RHN", "SCRNN", "MI-LSTM", "LSTM", "GNMT"),
    "speech": ("DeepSpeech",),
}
