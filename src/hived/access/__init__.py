"""Who asks, and what they may do: people, the roles that a spec gives them, and tokens. Pure."""

from .people import NOBODY, Person
from .rules import Access, Role
from .tokens import Token, Tokens

__all__ = ["NOBODY", "Access", "Person", "Role", "Token", "Tokens"]
