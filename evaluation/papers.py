"""The papers whose evaluation can be run again."""

from __future__ import annotations

from enum import StrEnum

from .antman import ANTMAN
from .exchange import EXCHANGE
from .gandiva import GANDIVA
from .hived import HIVED


class Paper(StrEnum):
    """By the name of the command's argument."""

    HIVED = "hived"
    GANDIVA = "gandiva"
    ANTMAN = "antman"
    EXCHANGE = "exchange"


EVALUATIONS = {Paper.HIVED: HIVED, Paper.GANDIVA: GANDIVA, Paper.ANTMAN: ANTMAN, Paper.EXCHANGE: EXCHANGE}
