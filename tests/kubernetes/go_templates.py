"""A small part of Go's templates, as Helm extends them: what our chart is written in. Anything else is refused.

Where Go would print ``<no value>``, or guess, this raises: whatever passes here means the same to Helm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-(?=\s))?(.*?)((?<=\s)-)?\}\}", re.DOTALL)
_COMMENT = re.compile(r"\s*/\*.*\*/\s*", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?:(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<number>-?\d+)|(?P<field>\$?(?:\.[A-Za-z_]\w*)+|\$|\.)|"""
    r"""(?P<word>[A-Za-z_]\w*))(?=[\s|()]|$)|(?P<mark>[|()]))"""
)
_CONSTANTS = {"true": True, "false": False}
_VERB = re.compile(r"%[sdq%]")


class TemplateError(Exception):
    """A template that is wrong, or in a part of the language that is not here."""


# -- what a template consists of --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    value: str | int | bool


@dataclass(frozen=True)
class Field:
    """``.a.b`` of what is looked at, or ``$.a.b`` of everything."""

    root: bool
    path: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    name: str
    arguments: tuple[Expression, ...]


Expression = Constant | Field | Call


@dataclass(frozen=True)
class Block:
    """``if``, ``with`` or ``range`` over ``subject``."""

    kind: str
    subject: Expression
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


Node = str | Constant | Field | Call | Block  #: a text, a value to print, or a block


# -- reading ----------------------------------------------------------------------------------------------------------


class Parser:
    """Reads one template; what it defines goes to ``defines``."""

    def __init__(self, text: str, defines: dict[str, list[Node]]) -> None:
        self._pieces = list(_pieces(text))
        self._defines = defines
        self._at = 0

    def parse(self) -> list[Node]:
        """The whole template."""
        nodes, end = self._nodes(top=True)
        if end is not None:
            raise TemplateError(f"{{{{ {end} }}}} closes nothing")
        return nodes

    def _nodes(self, *, top: bool = False) -> tuple[list[Node], str | None]:
        """Up to the action that ends this part, and that action; None: up to the template's end."""
        nodes: list[Node] = []
        while self._at < len(self._pieces):
            is_action, piece = self._pieces[self._at]
            self._at += 1
            if not is_action:
                nodes.append(piece)
                continue
            word, _, rest = piece.partition(" ")
            if word in ("end", "else"):
                return nodes, piece
            if word == "define":
                if not top:
                    raise TemplateError("define stands inside something")
                self._define(rest)
            elif word in ("if", "with", "range"):
                nodes.append(self._block(word, rest))
            else:
                nodes.append(expression(piece))
        return nodes, None

    def _define(self, rest: str) -> None:
        name = expression(rest)
        if not isinstance(name, Constant) or not isinstance(name.value, str) or name.value in self._defines:
            raise TemplateError(f"define {rest}: a name in quotes that is not defined yet")
        body, end = self._nodes()
        if end != "end":
            raise TemplateError(f"define {rest}: no end")
        self._defines[name.value] = body

    def _block(self, kind: str, rest: str) -> Block:
        subject = expression(rest)
        body, end = self._nodes()
        otherwise: list[Node] = []
        if end is not None and end.startswith("else if ") and kind == "if":
            return Block(kind, subject, body, [self._block("if", end.removeprefix("else if "))])
        if end == "else":
            otherwise, end = self._nodes()
        if end != "end":
            raise TemplateError(f"{kind} {rest}: {'no end' if end is None else end + ' is not known there'}")
        return Block(kind, subject, body, otherwise)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Texts, and actions in one line without their braces; white space is trimmed as the dashes say."""
    at = 0
    trim = False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        before = before.rstrip() if match[1] else before
        if before:
            yield False, before
        at, trim = match.end(), bool(match[3])
        if not _COMMENT.fullmatch(match[2]):
            yield True, " ".join(match[2].split()) if '"' not in match[2] else match[2].strip()
    rest = text[at:].lstrip() if trim else text[at:]
    if "{{" in rest:
        raise TemplateError("an action is not closed")
    if rest:
        yield False, rest


def expression(text: str) -> Expression:
    """What stands between the braces: commands, joined by pipes."""
    tokens = _tokens(text)
    found, at = _pipeline(tokens, 0)
    if at != len(tokens):
        raise TemplateError(f"{text!r}: {tokens[at][1]!r} is too much")
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise TemplateError(f"{text!r}: {text[at:].strip()!r} is not in the part of the language that is here")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


def _pipeline(tokens: Sequence[tuple[str, str]], at: int) -> tuple[Expression, int]:
    found, at = _command(tokens, at, ())
    while at < len(tokens) and tokens[at][1] == "|":
        found, at = _command(tokens, at + 1, (found,))
    return found, at


def _command(tokens: Sequence[tuple[str, str]], at: int, piped: tuple[Expression, ...]) -> tuple[Expression, int]:
    """A function with its arguments, ``piped`` the last of them; or one value."""
    if at >= len(tokens):
        raise TemplateError("something is missing at the end")
    kind, word = tokens[at]
    name = word if kind == "word" and word not in _CONSTANTS else None
    if kind == "field" and word.endswith(".Files.Get"):
        name = "Files.Get"
    arguments: list[Expression] = []
    if name is not None:
        if name not in _FUNCTIONS:
            raise TemplateError(f"{name}: no function that is here")
        at += 1
    while at < len(tokens) and tokens[at][1] not in ("|", ")"):
        value, at = _operand(tokens, at)
        arguments.append(value)
    if name is not None:
        return Call(name, (*arguments, *piped)), at
    if len(arguments) != 1 or piped:
        raise TemplateError(f"{word!r}: a value takes no arguments")
    return arguments[0], at


def _operand(tokens: Sequence[tuple[str, str]], at: int) -> tuple[Expression, int]:
    kind, word = tokens[at]
    if kind == "string":
        return Constant(json.loads(word)), at + 1
    if kind == "number":
        return Constant(int(word)), at + 1
    if kind == "field":
        return Field(word.startswith("$"), tuple(part for part in word.lstrip("$").split(".") if part)), at + 1
    if word in _CONSTANTS:
        return Constant(_CONSTANTS[word]), at + 1
    if word == "(":
        found, at = _pipeline(tokens, at + 1)
        if at >= len(tokens) or tokens[at][1] != ")":
            raise TemplateError("a parenthesis is not closed")
        return found, at + 1
    raise TemplateError(f"{word!r}: a function is called in parentheses there")


# -- rendering --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renderer:
    """Templates over ``root``, with the named ones that they include."""

    root: Mapping[str, Any]
    defines: Mapping[str, list[Node]] = field(default_factory=dict)

    def render(self, nodes: Sequence[Node], dot: object) -> str:
        """The text of ``nodes`` when ``dot`` is looked at."""
        return "".join(self._node(node, dot) for node in nodes)

    def _node(self, node: Node, dot: object) -> str:
        if isinstance(node, str):
            return node
        if not isinstance(node, Block):
            return printed(self.value(node, dot), node)
        subject = self.value(node.subject, dot)
        if not truth(subject):
            return self.render(node.otherwise, dot)
        if node.kind == "if":
            return self.render(node.body, dot)
        if node.kind == "with":
            return self.render(node.body, subject)
        if isinstance(subject, Mapping):
            subject = [subject[key] for key in sorted(subject)]
        if not isinstance(subject, list):
            raise TemplateError(f"range over {subject!r}, which is no list")
        return "".join(self.render(node.body, item) for item in subject)

    def value(self, found: Expression, dot: object) -> Any:
        """What an expression comes to."""
        if isinstance(found, Constant):
            return found.value
        if isinstance(found, Field):
            value: Any = self.root if found.root else dot
            for name in found.path:
                if not isinstance(value, Mapping):
                    raise TemplateError(f".{'.'.join(found.path)}: nothing has a {name} there")
                value = value.get(name)
            return value
        arguments = [self.value(argument, dot) for argument in found.arguments]
        try:
            return _FUNCTIONS[found.name](self, *arguments)
        except TypeError as error:
            raise TemplateError(f"{found.name}: {error}") from error

    def include(self, name: str, dot: object) -> str:
        """A named template."""
        if name not in self.defines:
            raise TemplateError(f"include: nothing is defined as {name!r}")
        return self.render(self.defines[name], dot)

    def file(self, path: str) -> str:
        """A file of the chart."""
        files: Mapping[str, str] = self.root.get("Files", {})
        if path not in files:
            raise TemplateError(f".Files.Get: there is no {path}")
        return files[path]


def truth(value: object) -> bool:
    """What Go takes for true: all but false, nothing, zero, and what is empty."""
    return bool(value)


def printed(value: object, where: object = "") -> str:
    """A value as Go prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:  # beyond, Go prints 1e+06
        return str(int(value))
    raise TemplateError(f"{value!r} cannot be printed ({where})")


def _default(_: Renderer, instead: Any, value: Any) -> Any:
    return value if truth(value) else instead


def _required(_: Renderer, message: str, value: Any) -> Any:
    if value is None or value == "":
        raise TemplateError(message)
    return value


def _eq(_: Renderer, left: object, right: object) -> bool:
    if type(left) is not type(right) or not isinstance(left, (str, int)):
        raise TemplateError(f"eq: {left!r} and {right!r} cannot be compared")
    return left == right


def _int(_: Renderer, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise TemplateError(f"int: {value!r} is no whole number")
    return int(value)


def _and(_: Renderer, first: Any, *others: Any) -> Any:
    values = (first, *others)
    return next((value for value in values if not truth(value)), values[-1])


def _or(_: Renderer, first: Any, *others: Any) -> Any:
    values = (first, *others)
    return next((value for value in values if truth(value)), values[-1])


def _printf(_: Renderer, form: str, *values: object) -> str:
    rest = list(values)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if not rest:
            raise TemplateError(f"printf {form!r}: too few values")
        value = rest.pop(0)
        if isinstance(value, bool) or not isinstance(value, int if match[0] == "%d" else str):
            raise TemplateError(f"printf {form!r}: {value!r} is nothing for {match[0]}")
        return json.dumps(value, ensure_ascii=False) if match[0] == "%q" else str(value)

    if "%" in _VERB.sub("", form):
        raise TemplateError(f"printf {form!r}: only %s, %d and %q are here")
    text = _VERB.sub(one, form)
    if rest:
        raise TemplateError(f"printf {form!r}: too many values")
    return text


def _nindent(_: Renderer, width: int, text: str) -> str:
    pad = " " * width
    return "\n" + pad + text.replace("\n", "\n" + pad)


def _to_yaml(_: Renderer, value: Any) -> str:
    return yaml.safe_dump(_numbers(value, back=True), default_flow_style=False).rstrip("\n")


def _numbers(value: Any, *, back: bool = False) -> Any:
    """Values as Helm has them, which reads every number as a float; ``back``: as they are written."""
    if isinstance(value, dict):
        return {key: _numbers(one, back=back) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one, back=back) for one in value]
    if isinstance(value, float) and back:
        return int(value) if value.is_integer() else value
    return float(value) if type(value) is int and not back else value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": _and,
    "default": _default,
    "eq": _eq,
    "Files.Get": Renderer.file,
    "include": Renderer.include,
    "int": _int,
    "nindent": _nindent,
    "not": lambda _, value: not truth(value),
    "or": _or,
    "printf": _printf,
    "quote": lambda _, value: json.dumps(printed(value), ensure_ascii=False),
    "required": _required,
    "toYaml": _to_yaml,
}


# -- charts -----------------------------------------------------------------------------------------------------------


def merged(defaults: Any, given: Any) -> Any:
    """Values over the chart's own: maps are joined, everything else is replaced, null takes away."""
    if not isinstance(given, dict):
        return given
    defaults = defaults if isinstance(defaults, dict) else {}
    both = {key: merged(defaults.get(key), value) for key, value in given.items() if value is not None}
    return {**{key: value for key, value in defaults.items() if key not in given}, **both}


def render_chart(
    chart: Path, values: Mapping[str, Any] | None = None, *, release: str, namespace: str
) -> dict[str, str]:
    """What ``helm template`` prints, by the names of the templates."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    own = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    root = {
        "Values": _numbers(merged(own, dict(values or {}))),
        "Release": {"Name": release, "Namespace": namespace, "Service": "Helm"},
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
        "Files": {
            str(path.relative_to(chart)): path.read_text(encoding="utf-8") for path in (chart / "files").rglob("*.*")
        },
    }
    defines: dict[str, list[Node]] = {}
    templates = {
        path.name: Parser(path.read_text(encoding="utf-8"), defines).parse()
        for path in sorted((chart / "templates").iterdir())
    }
    renderer = Renderer(root, defines)
    return {name: renderer.render(nodes, root) for name, nodes in templates.items() if not name.startswith("_")}


def render(text: str, root: Mapping[str, Any]) -> str:
    """One template, with what it defines itself."""
    defines: dict[str, list[Node]] = {}
    nodes = Parser(text, defines).parse()
    root = {**root, "Values": _numbers(root.get("Values", {}))}
    return Renderer(root, defines).render(nodes, root)
