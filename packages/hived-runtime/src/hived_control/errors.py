"""What is wrong with a command for a training job; the command line gives each kind its exit code."""

from __future__ import annotations


class TrainingError(Exception):
    """Base of every error that is raised on purpose: one line, with the way out."""

    exit_code = 1


class InputError(TrainingError):
    """The input cannot be used as it is."""

    exit_code = 2


class NotFoundError(InputError):
    """There is no job of that name."""

    exit_code = 4


class ConflictError(InputError):
    """The operation is not possible in the present state."""


class UnavailableError(TrainingError):
    """A job does not answer, or the operation is not possible at the moment."""

    exit_code = 69


class StorageError(TrainingError):
    """Persistent data cannot be written."""

    exit_code = 73


class ForbiddenError(TrainingError):
    """Others could read or change what is the user's."""

    exit_code = 77
