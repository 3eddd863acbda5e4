"""Values of shell variables, as far as they are literal: what is not known leaves a mark in the word."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moe_dispatch.megatron.inputs.lexer import Piece, Token

OPEN = "\0"
"""Begins and ends, in a word, the name of what could not be read."""
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|(?P<special>[@*#?$!0-9-])|\{(?P<braced>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
    r"|\(\((?P<sum>[^()]*)\)\)|\((?P<command>.*)\))",
    re.DOTALL,
)
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<index>[@*])\])?(?::?(?P<how>[-=+])(?P<other>.*))?", re.DOTALL)
_SUM = re.compile(r"[\s\d+*/%()-]*")
_MOST_DIGITS = 40
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass
class Variables:
    """What a script has set so far: strings, arrays, and names whose value depends on a condition.

    Fields:
        missing: names that were used and are not known.
    """

    strings: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def forget(self, name: str) -> None:
        """From now on the value is not known."""
        self.arrays.pop(name, None)
        self.strings[name] = _open(name)

    def words(self, token: Token) -> list[str]:
        """A token as words: unquoted values split at spaces, arrays give a word for each element."""
        found: list[str] = [""]
        started = False
        for piece in token.pieces:
            if piece.literal:
                found[-1] += piece.text
                started = True
                continue
            for text, splits in self._expanded(piece):
                if isinstance(text, list):
                    found = [*found[:-1], found[-1] + text[0], *text[1:]] if text else found
                    started = started or bool(text)
                elif splits:
                    parts = text.split()
                    if parts:
                        leading = [*found[:-1], found[-1] + parts[0]]
                        found, started = [*leading, *parts[1:]], True
                else:
                    found[-1] += text
                    started = started or bool(text) or piece.quoted
        return found if started else []

    def string(self, token: Token) -> str:
        """A token as one string, as in an assignment."""
        parts = []
        for piece in token.pieces:
            if piece.literal:
                parts.append(piece.text)
                continue
            parts += [" ".join(text) if isinstance(text, list) else text for text, _ in self._expanded(piece)]
        return "".join(parts)

    def _expanded(self, piece: Piece) -> list[tuple[str | list[str], bool]]:
        """Parts of a piece; the flag says whether a value splits at spaces."""
        found: list[tuple[str | list[str], bool]] = []
        at = 0
        for match in _VARIABLE.finditer(piece.text):
            if match.start() > at:
                found.append((piece.text[at : match.start()], False))
            value = self._value(match)
            found.append((value, not piece.quoted and not isinstance(value, list)))
            at = match.end()
        if at < len(piece.text):
            found.append((piece.text[at:], False))
        return found

    def _value(self, match: re.Match[str]) -> str | list[str]:
        if match["special"] is not None:
            # A launcher is judged as if it were started without further arguments.
            return [] if match["special"] in "@*" else _open("")
        if match["sum"] is not None:
            return self._sum(match["sum"])
        if match["command"] is not None:
            return _open("")
        if match["plain"] is not None:
            return self._lookup(match["plain"])
        braced = _BRACED.fullmatch(match["braced"])
        if braced is None:
            return _open("")
        if braced["index"]:
            return list(self.arrays[braced["name"]]) if braced["name"] in self.arrays else self._lookup(braced["name"])
        return self._with_default(braced)

    def _with_default(self, braced: re.Match[str]) -> str:
        name, how = braced["name"], braced["how"]
        known = name in self.strings or name in self.arrays
        if how is None:
            return self._lookup(name)
        other = self.string(Token(0, (Piece(braced["other"].strip("\"'")),)))
        if how == "+":
            return other if known and self._lookup(name) else ""
        value = self._lookup(name) if known else ""
        if not value:
            value = other
            if how == "=":
                self.strings[name] = value
        return value

    def _lookup(self, name: str) -> str:
        if name in self.strings:
            return self.strings[name]
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        self.missing.append(name)
        return _open(name)

    def _sum(self, text: str) -> str:
        known = {name: self._lookup(name) for name in set(re.findall(r"[A-Za-z_]\w*", text))}
        numbers = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: known.get(match[1], _open(match[1])), text)
        if not _SUM.fullmatch(numbers) or len(numbers) > _MOST_DIGITS or "**" in numbers:
            return _open("")
        return _integer(numbers)


def _integer(expression: str) -> str:
    """Shell arithmetic on literal integers; a mark for anything else."""
    try:
        return str(_fold(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return _open("")


def _fold(node: ast.expr) -> int:
    """The value of an expression of integers.

    Raises:
        ValueError: something else is in it.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_fold(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_fold(node.left), _fold(node.right))
    raise ValueError("not an expression of integers")


def _open(name: str) -> str:
    return f"{OPEN}{name}{OPEN}"


def open_name(word: str) -> str | None:
    """The variable that a whole word stands for; None when the word is, or holds, something that was read."""
    if len(word) < 2 or not (word.startswith(OPEN) and word.endswith(OPEN)) or OPEN in word[1:-1]:
        return None
    return word[1:-1]


def initial(environment: Mapping[str, str]) -> Variables:
    """Variables as the shell starts with them."""
    return Variables(strings=dict(environment))
