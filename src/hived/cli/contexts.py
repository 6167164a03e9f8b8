"""The engines that the command line knows by name, and which of them it speaks to.

A file of JSON in the user's configuration folder. An option or a variable of the environment goes before it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from secrets import token_hex

from pydantic import BaseModel, ConfigDict, ValidationError

from hived.errors import InputError, NotFoundError, StorageError


class Context(BaseModel):
    """Where an engine is: at an address, or in a folder of this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str | None = None  #: ``http://host:port``
    state: str | None = None  #: absolute path
    token_file: str | None = None  #: absolute path


class Contexts(BaseModel):
    """All contexts, by name, and the current one."""

    model_config = ConfigDict(extra="forbid")

    current: str | None = None
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """A context. Raises :class:`~hived.errors.NotFoundError`."""
        if name not in self.contexts:
            there = ", ".join(sorted(self.contexts)) or "none yet; hived context add NAME --engine URL"
            raise NotFoundError(f"no context {name!r}; there are {there}")
        return self.contexts[name]


def contexts_file() -> Path:
    """Where the contexts of this user are kept."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path("~/.config").expanduser()) / "hived" / "contexts.json"


def read_contexts() -> Contexts:
    """The contexts of this user. Raises :class:`~hived.errors.InputError` for a file that is none of contexts."""
    file = contexts_file()
    try:
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: is not a file; delete it, or name another folder with XDG_CONFIG_HOME")
        return Contexts.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not what hived context writes"
        raise InputError(f"{file}: cannot be used ({why}); mend or delete it") from None


def chosen_context(name: str | None) -> Context | None:
    """The context of this name, or of HIVED_CONTEXT, or the current one; None: there is none."""
    known = read_contexts()
    name = name or os.environ.get("HIVED_CONTEXT") or known.current
    return None if name is None else known.named(name)


def write_contexts(contexts: Contexts) -> None:
    """Replace the file, whole or not at all; where it is a link, what that leads to."""
    file = Path(os.path.realpath(contexts_file()))
    draft = file.with_name(f".{file.name}.{token_hex(8)}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(json.dumps(contexts.model_dump(exclude_none=True), indent=2) + "\n", encoding="utf-8")
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror})") from None
