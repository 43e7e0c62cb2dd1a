"""Conditions on versions: ``auc > 0.9 and (lr < 1e-3 or data = "cars")`` (docs/commands/log.md).

A name is looked up first in the version's metrics, then in its params, then among ``author``,
``message``, ``run`` and ``note``. If a version lacks the name, a comparison with the name is false,
and ``not`` does not make it true. A name on the right-hand side that the version lacks means the
text itself: in ``run = b``, b is a text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias

from mvc.errors import WrongUsage
from mvc.names import printable

Values: TypeAlias = Mapping[str, float | str]
_Condition: TypeAlias = Callable[[Values], int]  # 1: true, -1: false, 0: a name is missing
_Operand: TypeAlias = Callable[[Values], float | str | None]

_LONGEST = 10_000  # characters
_DEEPEST = 50  # levels of nested parentheses and negations
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d+)?(?![\w.])|[-+]?(?:inf|nan)\b)"
    r"|(?P<name>[A-Za-z_][\w./@:-]*|`[^`]+`)"
    r"|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign><=|>=|==|!=|<|>|=|\(|\))"
    r"|(?P<end>$))"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_OF_TEXTS = {"=", "==", "!="}
_CONSTANTS = {"true", "false", "null"}  # values of params, not names


class Condition:
    """A predicate on a version's values. ``names``: the names that the condition reads.

    Raises WrongUsage with the position of a syntax error.
    """

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._condition = parser.condition()
        self.names = frozenset(parser.names)

    def __call__(self, values: Values) -> bool:
        return self._condition(values) > 0


class _Parser:
    """Parses one condition. ``kind`` and ``word`` describe the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._end = 0
        self._depth = 0
        self.kind = self.word = ""
        self.names: set[str] = set()
        if len(text) > _LONGEST:
            raise WrongUsage(f"the condition is longer than {_LONGEST:,} characters")
        self._next()

    def condition(self) -> _Condition:
        condition = self._either()
        if self.kind != "end":
            self._fail("'and', 'or' or the end is expected")
        return condition

    def _next(self) -> None:
        self._at = self._end
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            self._at += len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
            self._fail("a name, a number, a text in quotes or a sign is expected")
        self.kind, self.word = match.lastgroup, match[match.lastgroup]
        self._at, self._end = match.start(match.lastgroup), match.end()

    def _fail(self, wanted: str) -> NoReturn:
        before, after = self._text[: self._at], self._text[self._at :]
        raise WrongUsage(
            f"the condition cannot be read: {wanted} at the ^: "
            f"{printable(before[-100:])}^{printable(after[:100])}",
            hint="such as 'auc > 0.9 and (lr < 1e-3 or data = \"cars\")'",
        )

    def _accept(self, *words: str) -> bool:
        """Consumes the next token if it is one of ``words``."""
        if self.kind in {"name", "sign"} and self.word in words:
            self._next()
            return True
        return False

    def _either(self) -> _Condition:
        return self._joined("or", self._all, max)

    def _all(self) -> _Condition:
        return self._joined("and", self._negated, min)

    def _joined(
        self, word: str, part: Callable[[], _Condition], join: Callable[[Iterable[int]], int]
    ) -> _Condition:
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        return lambda values: join(condition(values) for condition in parts)

    def _negated(self) -> _Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("parentheses and negations are nested too deeply")
        condition: _Condition
        if self._accept("not"):
            inner = self._negated()
            condition = lambda values: -inner(values)  # noqa: E731
        elif self._accept("("):
            condition = self._either()
            if not self._accept(")"):
                self._fail("')' is expected")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> _Condition:
        is_name = self.kind == "name" and self.word not in _CONSTANTS
        left = self._operand()
        sign = self.word if self.kind == "sign" else ""
        if sign not in _COMPARE:
            if not is_name:
                self._fail("<, <=, >, >=, = or != is expected")
            return lambda values: int(left(values) is not None)
        self._next()
        right = self._operand(or_word=is_name)
        return lambda values: _compared(sign, left(values), right(values))

    def _operand(self, *, or_word: bool = False) -> _Operand:
        """Parses an operand. ``or_word``: a name that a version lacks means the text itself."""
        kind, word = self.kind, self.word
        if kind in {"end", "sign"} or (kind == "name" and word in {"and", "or", "not"}):
            self._fail("a name, a number or a text in quotes is expected")
        self._next()
        if kind == "number":
            number = float(word)
            return lambda _: number
        if kind == "text" or word in _CONSTANTS:
            text = word[1:-1] if kind == "text" else word
            return lambda _: text
        name = word.strip("`")
        if not or_word:
            self.names.add(name)
        return lambda values: values.get(name, name if or_word else None)


def _compared(sign: str, left: float | str | None, right: float | str | None) -> int:
    if left is None or right is None:
        return 0
    a, b = as_number(left), as_number(right)
    if a is not None and b is not None:
        left, right = a, b
    elif sign not in _OF_TEXTS:
        return 0  # texts have no order
    return 1 if _COMPARE[sign](left, right) else -1


def as_number(value: float | str) -> float | None:
    """Converts a value to a number. Returns None for a text that is not a number."""
    try:
        return float(value)
    except ValueError:
        return None
