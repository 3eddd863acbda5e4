"""Words of a shell script: quotes, escapes, comments, continuations, arrays and heredocs, as launchers use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REDIRECTION = re.compile(r"\d?(>>|>&|&>|>|<)(&\d|\s*[^\s;|&]+)?")


@dataclass(frozen=True)
class Piece:
    """Part of a word. `quoted` keeps it whole; `literal` (single quotes) keeps `$` as it is."""

    text: str
    quoted: bool = False
    literal: bool = False


@dataclass(frozen=True)
class Token:
    """A word (`pieces`) or an operator (`operator`), with its line."""

    line: int
    pieces: tuple[Piece, ...] = ()
    operator: str = ""

    @property
    def bare(self) -> str:
        """The text without quotes."""
        return "".join(piece.text for piece in self.pieces)


def tokens(text: str) -> Iterator[Token]:
    """Cut a script into tokens; an unclosed quote ends with the text."""
    return _Lexer(text.replace("\\\r\n", "\\\n").replace("\r\n", "\n")).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.pieces: list[Piece] = []
        self.buffer = ""

    def run(self) -> Iterator[Token]:
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
                continue
            char = self.text[self.at]
            if char == "\\" and self.at + 1 < len(self.text):
                self._flush()
                self.pieces.append(Piece(self.text[self.at + 1], quoted=True, literal=True))
                self.at += 2
            elif char == "'":
                self._quoted("'")
            elif char == '"':
                self._quoted('"')
            elif char == "$" and self.text.startswith(("$(", "${"), self.at):
                self.buffer += self._balanced()
            elif char in " \t":
                yield from self._word()
                self.at += 1
            elif char == "#" and not self.buffer and not self.pieces:
                self.at = self._end_of_line()
            else:
                yield from self._plain(char)
        yield from self._word()

    def _plain(self, char: str) -> Iterator[Token]:
        heredoc = _HEREDOC.match(self.text, self.at)
        if heredoc is not None and not self.text.startswith("<<<", self.at):
            yield from self._word()
            self._skip_heredoc(heredoc)
            return
        redirection = _REDIRECTION.match(self.text, self.at)
        if redirection is not None and not self.buffer:
            yield from self._word()
            self.at = redirection.end()
            return
        operator = next((each for each in _OPERATORS if self.text.startswith(each, self.at)), None)
        if operator is None:
            self.buffer += char
            self.at += 1
            return
        yield from self._word()
        yield Token(self.line, operator=operator)
        self.at += len(operator)
        self.line += operator == "\n"

    def _quoted(self, quote: str) -> None:
        self._flush()
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        inner = self.text[self.at + 1 : end]
        self.line += inner.count("\n")
        if quote == '"':
            inner = re.sub(r"\\\n", "", inner)
            inner = re.sub(r'\\(["\\`])', r"\1", inner)
        self.pieces.append(Piece(inner, quoted=True, literal=quote == "'"))
        self.at = end + 1

    def _balanced(self) -> str:
        """A `$( )` or `${ }` with everything inside."""
        start, depth, opening = self.at, 0, self.text[self.at + 1]
        closing = ")" if opening == "(" else "}"
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += (char == opening) - (char == closing)
            self.line += char == "\n"
            self.at += 1
            if depth == 0 and char == closing:
                break
        return self.text[start : self.at]

    def _skip_heredoc(self, match: re.Match[str]) -> None:
        end = re.compile(rf"^\t*{re.escape(match[2])}$", re.MULTILINE).search(self.text, match.end())
        stop = end.end() if end else len(self.text)
        self.line += self.text.count("\n", self.at, stop)
        self.at = stop

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _flush(self) -> None:
        if self.buffer:
            self.pieces.append(Piece(self.buffer))
            self.buffer = ""

    def _word(self) -> Iterator[Token]:
        self._flush()
        if self.pieces:
            yield Token(self.line, pieces=tuple(self.pieces))
            self.pieces = []
