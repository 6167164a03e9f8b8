"""Who asks, and what they may do: people, the roles that a spec gives them, and tokens. Pure."""

from .people import NOBODY, Person
from .rules import Access, Role
from .sessions import SESSION, Session, Sessions
from .tokens import Token, Tokens

__all__ = ["NOBODY", "SESSION", "Access", "Person", "Role", "Session", "Sessions", "Token", "Tokens"]
