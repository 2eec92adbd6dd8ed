"""The mechanical rules for ethorch's prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.prose.texts import Text, without_code

#: Words that a sentence may have.
WORDS = 30
_BEGINNINGS = re.compile(r"^(What|Which|Where|Whether|How|Does|Do|Is|Are|Of|As|For|Can|Has|Whose|Who)\b")
#: Rule -> pattern of a violation, in prose without code.
_PATTERNS: dict[str, re.Pattern[str]] = {
    "a clause with 'what'": re.compile(r"\bwhat(ever)?\b(?! to\b)", re.IGNORECASE),
    "a person without a name": re.compile(r"\b(whoever|somebody|someone|nobody|anybody|everybody)\b", re.IGNORECASE),
    "'behind' or 'in front of' for an order": re.compile(r"\b(behind|in front of)\b", re.IGNORECASE),
    "'lies' for a place": re.compile(r"\b(lies|lie|lying)\b", re.IGNORECASE),
    "a thing that speaks or knows": re.compile(
        r"\b(says|say|said|saying|tells|tell|told|telling|knows|wants|sees)\b", re.IGNORECASE
    ),
    "a thing that takes or gives": re.compile(
        r"\b(gives|is given|are given|is taken|are taken|took|takes(?! (a|an|the|up|place|precedence|about|less|longer|effect|"
        r"part|over|some|several|only|at|\d+|~|two|three|four|five|X|minutes|seconds|hours|more|most|much)\b))",
        re.IGNORECASE,
    ),
    "a negated noun": re.compile(
        r"\b(?<!there )(is|are|was|were|be|been) (?-i:none)\b|\bnone of the\b"
        r"|\b(is|are|was|were|be|been) (?:nobody|nothing|no(?! (longer|more|less|fewer|larger|smaller|greater|better|worse|later|"
        r"earlier|different|slower|faster|wider|deeper|higher|lower|bigger)\b))\b",
        re.IGNORECASE,
    ),
    "'has to be' in place of 'must be'": re.compile(r"\b(has|have) to be\b", re.IGNORECASE),
    "'as of' in place of a link": re.compile(r"\bas of (?!\d|now|version|ExecuTorch|executorch|torch|Vela|today)", re.IGNORECASE),
}
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+(?=[A-Z`\"(\[a-z])|\n\s*\n|\n\s*[-*]\s|:\n")
_IMPERATIVE_ENDINGS = re.compile(r"^[A-Z][a-z]+(?<!ss)s$")
#: First words that end in s and are verbs.
_VERBS = frozenset(
    [
        "Access",
        "Address",
        "Alias",
        "Assess",
        "Compress",
        "Cross",
        "Discuss",
        "Express",
        "Focus",
        "Guess",
        "Miss",
        "Pass",
        "Press",
        "Process",
    ]
)


@dataclass(frozen=True)
class Violation:
    """A violation of a rule."""

    file: str
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.words}"


def violations(text: Text) -> Iterator[Violation]:
    """Yield the violations of one text."""
    prose = without_code(text.text)
    if text.is_docstring:
        first = prose.strip().split("\n")[0]
        if match := _BEGINNINGS.match(first):
            yield Violation(text.file, text.line, "a docstring's first word", f"{match[0]}: {first[:80]}")
        if first.endswith("?"):
            yield Violation(text.file, text.line, "a question as a docstring", first[:80])
        word = first.split(" ")[0]
        if text.kind == "function" and _IMPERATIVE_ENDINGS.match(word) and word not in _VERBS:
            yield Violation(text.file, text.line, "no imperative", first[:80])
    for rule, pattern in _PATTERNS.items():
        for match in pattern.finditer(prose):
            start = max(0, match.start() - 30)
            line = text.line + text.text[: _place(text.text, match[0], prose, match.start())].count("\n")
            yield Violation(text.file, line, rule, " ".join(prose[start : match.end() + 30].split()))
    if text.kind == "comment":
        return
    for sentence in _SENTENCE.split(prose):
        count = 0 if "|" in sentence else len(re.findall(r"[\w`'-]*[A-Za-z][\w`'-]*", sentence))
        if count > WORDS:
            words = f"{count}: {' '.join(sentence.split())[:70]}"
            yield Violation(text.file, text.line, f"a sentence of more than {WORDS} words", words)


def _place(source: str, words: str, prose: str, position: int) -> int:
    """Return the position in ``source`` of the words at ``position`` in ``prose``."""
    nth = prose[:position].count(words)
    place = -1
    for _ in range(nth + 1):
        place = source.find(words, place + 1)
        if place < 0:
            return 0
    return place
