"""What the table of models has from the papers: Gandiva's gains of packing, and which models are of a family."""

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

#: what the rows of families are the means of
FAMILIES = {
    "cv": ("ResNet-50", "VGG16", "InceptionV3"),
    "nlp": ("RHN", "SCRNN", "MI-LSTM", "LSTM", "GNMT"),
    "speech": ("DeepSpeech",),
}
