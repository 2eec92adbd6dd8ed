"""Check the rules of prose and names, and count words and names. ``python -m tools.prose`` prints the table.

Ruff's D401 checks that docstrings are imperative.
"""

from __future__ import annotations

import pytest

from tools.prose.__main__ import counts, texts
from tools.prose.names import GENERIC, names
from tools.prose.rules import violations
from tools.prose.texts import Text

#: Row of the table -> largest allowed count.
LIMITS = {
    "words of docstrings": 80_000,
    "words of pages written by hand": 30_000,
    "words of CHANGELOG": 1_500,
    "words of code blocks in pages": 4_179,
    "variables without a meaning": 200,
    "functions and properties without a meaning": 0,
    "parameters of public functions without a meaning": 0,
    "functions named by a participle": 60,
    **{f"uses of the name {name}": count * 5 // 4 for name, count in GENERIC.items()},
}


def test_no_text_breaks_a_rule() -> None:
    found = [str(violation) for text in texts() for violation in violations(text)]
    assert not found, "\n".join(found)


def test_counts_are_within_their_limits() -> None:
    table = dict(counts())
    above = {row: (table[row], limit) for row, limit in LIMITS.items() if table[row] > limit}
    empty = [str(name) for name in names() if name.is_empty and name.kind != "variable"]
    assert not above, f"{above}\n" + "\n".join(empty)


@pytest.mark.parametrize(
    "sentence, rule",
    [
        ("Return what the operator computes.", "a clause with 'what'"),
        ("Whether the board fits.", "a docstring's first word"),
        ("Is it a constant?", "a question as a docstring"),
        ("Returns the size.", "no imperative"),
        ("Return the size. The tensor lies in SRAM.", "'lies' for a place"),
        ("Return the size. Nobody reads it.", "a person without a name"),
        ("Return the size, or 0 if there is no tensor.", "a negated noun"),
        ("Return the size. It has to be positive.", "'has to be' in place of 'must be'"),
        ("Return " + "the size and " * 20 + "the type.", "a sentence of more than 30 words"),
    ],
)
def test_a_rule_finds_its_violation(sentence: str, rule: str) -> None:
    assert rule in {violation.rule for violation in violations(Text("file.py", 1, "function", "name", sentence))}


def test_plain_sentences_break_no_rule() -> None:
    for sentence in (
        "Return the size in bytes.",
        "Raise ``what`` if the size is unknown.",
        "Place tensors in SRAM.",
        "Return x if y is None.",
        "Return the size, or None if there is none.",
    ):
        assert not list(violations(Text("file.py", 1, "function", "name", sentence)))
