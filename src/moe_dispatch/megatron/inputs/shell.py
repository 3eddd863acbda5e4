"""Commands that a shell script starts, with words and environment; conditions are followed where they are literal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from moe_dispatch.megatron.inputs.expand import OPEN, Variables, initial
from moe_dispatch.megatron.inputs.lexer import Piece, Token, tokens

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=(?P<rest>.*)", re.DOTALL)
_OPENS = ("for", "while", "until", "case", "select")
_CLOSES = ("done", "esac")
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")


@dataclass(frozen=True)
class Command:
    """One command: words, variables at its start, where it stands."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int


@dataclass
class Script:
    """What was found.

    Fields:
        exported: variables in the environment at the end, with the lines of their last assignment.
        variables: strings and arrays at the end.
        missing: variables that were used and not set.
        sbatch: options of `#SBATCH` lines.
    """

    commands: list[Command] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    variables: Variables = field(default_factory=Variables)
    missing: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()


def read_script(text: str, environment: Mapping[str, str] | None = None) -> Script:
    """Walk a script from top to bottom.

    Args:
        environment: variables it is started with.
    """
    walker = _Walker(initial(environment or {}))
    walker.walk(list(tokens(text)))
    script = walker.script
    script.variables = walker.variables
    script.missing = tuple(dict.fromkeys(walker.variables.missing))
    script.sbatch = tuple(word for match in _SBATCH.finditer(text) for word in re.split(r"[\s=]+", match[1].strip()))
    return script


class _Walker:
    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.script = Script()
        self.doubtful = 0
        self.branches: list[bool | None] = []
        """For each open `if`: whether this branch is taken; None when that is not known."""
        self.taken: list[bool | None] = []

    def walk(self, found: list[Token]) -> None:
        statement: list[Token] = []
        for index, token in enumerate(found):
            if token.operator in ("(", ")") and statement:
                opens_array = token.operator == "(" and _ends_with_equals(found[index - 1])
                if opens_array or any(each.operator == "(" for each in statement):
                    statement.append(token)
                    if token.operator == ")":
                        self._statement(statement)
                        statement = []
                    continue
            in_array = any(each.operator == "(" for each in statement)
            if token.operator and not (in_array and token.operator == "\n"):
                self._statement(statement)
                statement = []
            elif not token.operator:
                statement.append(token)
        self._statement(statement)

    def _statement(self, statement: list[Token]) -> None:
        while statement:
            word = statement[0].bare
            if word in ("if", "elif", "else", "then", "fi"):
                if self._branch(word, statement):
                    return
                statement = statement[1:]
            elif word in _OPENS:
                self.doubtful += 1
                return
            elif word in _CLOSES:
                self.doubtful = max(0, self.doubtful - 1)
                statement = statement[1:]
            elif word in ("do", "{", "}", "!", "function"):
                statement = statement[1:]
            else:
                break
        if statement and all(branch is not False for branch in self.branches):
            self._simple(statement)

    def _branch(self, word: str, statement: list[Token]) -> bool:
        """Follow `if`; returns whether the whole statement was its condition."""
        if word == "fi":
            if self.branches:
                self.branches.pop()
                self.taken.pop()
            return False
        if word == "if":
            decided = self._condition(statement[1:])
            self.branches.append(decided)
            self.taken.append(decided)
            return True
        if word in ("elif", "else") and self.branches:
            before = self.taken[-1]
            mine = True if word == "else" else self._condition(statement[1:])
            now: bool | None
            if before is True:
                now = False
            elif before is None:
                now = None if mine is not False else False
            else:
                now = mine
            self.branches[-1] = now
            self.taken[-1] = before if before or now is False else now
            return word == "elif"
        return False

    def _condition(self, statement: list[Token]) -> bool | None:
        """A comparison of two literals, or a test for emptiness; None when it cannot be told."""
        words = [self.variables.string(token) for token in statement]
        if not words or words[0] not in ("[", "[["):
            return None
        inner = words[1:-1]
        if any(OPEN in word for word in inner):
            return None
        if len(inner) == 2 and inner[0] in ("-z", "-n"):
            return (not inner[1]) == (inner[0] == "-z")
        if len(inner) == 3 and inner[1] in ("=", "==", "-eq"):
            return inner[0] == inner[2]
        if len(inner) == 3 and inner[1] in ("!=", "-ne"):
            return inner[0] != inner[2]
        return None

    @property
    def _in_doubt(self) -> bool:
        return self.doubtful > 0 or any(branch is None for branch in self.branches)

    def _simple(self, statement: list[Token]) -> None:
        exported = statement[0].bare in _EXPORTS
        exports = statement[0].bare == "export"
        rest = statement[1:] if exported else statement
        prefix: dict[str, str] = {}
        while rest and rest[0].pieces and (match := _assignment(rest[0])):
            if len(rest) > 1 and rest[1].operator == "(":
                self._array(match, rest[2:])
                return
            prefix[match["name"]] = self._assigned(match, rest[0])
            rest = rest[1:]
        if exported or not rest:
            self._keep(prefix, statement[0].line, exports)
            for token in rest if exports else []:
                self._export(token.bare, statement[0].line)
            return
        self._command(rest, prefix)

    def _command(self, rest: list[Token], prefix: Mapping[str, str]) -> None:
        words = tuple(word for token in rest if token.pieces for word in self.variables.words(token))
        environment = {**self.script.exported, **prefix}
        if words and words[0] == "env":
            while len(words) > 1 and (match := _ASSIGNMENT.fullmatch(words[1])):
                environment[match["name"]] = match["rest"]
                words = (words[0], *words[2:])
        if words:
            self.script.commands.append(Command(words, environment, rest[0].line))

    def _keep(self, values: Mapping[str, str], line: int, export: bool) -> None:
        for name, value in values.items():
            if self._in_doubt and self.variables.strings.get(name) != value:
                self.variables.forget(name)
            else:
                self.variables.arrays.pop(name, None)
                self.variables.strings[name] = value
            if export or name in self.script.exported:
                self._export(name, line)

    def _export(self, name: str, line: int) -> None:
        if name in self.variables.strings:
            self.script.exported[name] = self.variables.strings[name]
            self.script.lines[name] = line

    def _assigned(self, match: re.Match[str], token: Token) -> str:
        value = self.variables.string(_without_name(token, match))
        before = self.variables.strings.get(match["name"], "") if match["append"] else ""
        return before + value

    def _array(self, match: re.Match[str], inside: list[Token]) -> None:
        name = match["name"]
        words = [word for token in inside if token.pieces for word in self.variables.words(token)]
        if self._in_doubt:
            # What a condition adds is not known; the word left here says so where the array is used.
            words = [f"{OPEN}{name}{OPEN}"]
        before = self.variables.arrays.get(name, []) if match["append"] or self._in_doubt else []
        self.variables.strings.pop(name, None)
        self.variables.arrays[name] = [*before, *words]


def _ends_with_equals(token: Token) -> bool:
    return bool(token.pieces) and not token.pieces[-1].quoted and token.pieces[-1].text.endswith("=")


def _assignment(token: Token) -> re.Match[str] | None:
    first = token.pieces[0]
    return None if first.quoted else _ASSIGNMENT.fullmatch(first.text)


def _without_name(token: Token, match: re.Match[str]) -> Token:
    return Token(token.line, (Piece(match["rest"]), *token.pieces[1:]))


def words_of(text: str) -> Iterator[str]:
    """A text of bare arguments as words."""
    variables = Variables()
    for token in tokens(text):
        yield from variables.words(token)
