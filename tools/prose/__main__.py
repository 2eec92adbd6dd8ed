"""Check and count ethorch's prose and names.

``python -m tools.prose`` prints the counts; ``--check [PATH ...]`` lists violations of the rules in files and folders, and exits
with status 1 if there are any; ``--names [PATH ...]`` lists names without a meaning and functions named by a participle.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.prose.names import GENERIC, generic_counts, names
from tools.prose.rules import violations
from tools.prose.texts import GENERATED, ROOT, Text, code_words, pages, python_files, texts_of_page, texts_of_source

#: Folders whose texts must follow the rules; only those of ``ethorch`` are counted.
FOLDERS = ("ethorch", "examples", "tools", "bench")


def texts() -> Iterator[Text]:
    """Yield every text of the folders and of the pages."""
    for path in python_files(*FOLDERS):
        yield from texts_of_source(path)
    for path in pages():
        yield from texts_of_page(path)


def counts() -> list[tuple[str, int]]:
    """Return the rows of the table: words of each kind of text, and names."""
    words: Counter[str] = Counter()
    for path in python_files("ethorch"):
        for text in texts_of_source(path):
            words["docstrings" if text.is_docstring else f"{text.kind}s"] += text.words
    code = 0
    for path in pages():
        kind = "CHANGELOG" if path.name == "CHANGELOG.md" else "pages written by hand"
        words[kind] += sum(text.words for text in texts_of_page(path))
        code += code_words(path)
    generated = sum(len((ROOT / page).read_text(encoding="utf-8").split()) for page in GENERATED if (ROOT / page).exists())
    all_names = names()
    empty = Counter(name.kind for name in all_names if name.is_empty)
    public = sum(name.is_empty and name.kind == "parameter" and name.is_public for name in all_names)
    participles = sum(name.is_participle and name.kind == "function" for name in all_names)
    generic = generic_counts()
    return [
        *(
            (f"words of {kind}", words[kind])
            for kind in ("docstrings", "messages", "comments", "pages written by hand", "CHANGELOG")
        ),
        ("words of code blocks in pages", code),
        ("words of generated pages", generated),
        ("variables without a meaning", empty["variable"]),
        ("parameters without a meaning", empty["parameter"]),
        ("functions and properties without a meaning", empty["function"] + empty["property"]),
        ("parameters of public functions without a meaning", public),
        ("functions named by a participle", participles),
        *((f"uses of the name {name}", generic[name]) for name in GENERIC),
    ]


def _is_below(file: str, paths: Sequence[str]) -> bool:
    return not paths or any(file == path.strip("/") or file.startswith(path.strip("/") + "/") for path in paths)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tools.prose", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="list violations of the rules")
    parser.add_argument("--names", action="store_true", help="list names without a meaning")
    parser.add_argument("paths", nargs="*", help="files or folders, relative to the root of the repository")
    options = parser.parse_args(arguments)
    paths = [Path(path).as_posix() for path in options.paths]
    if options.check:
        lines = [str(violation) for text in texts() if _is_below(text.file, paths) for violation in violations(text)]
        print("\n".join([*lines, f"{len(lines)} violations"]))
        return int(bool(lines))
    if options.names:
        for name in names():
            if (name.is_empty or (name.is_participle and name.kind == "function")) and _is_below(name.file, paths):
                print(f"{name.file}:{name.line}: {name.kind} {name.name}")
        return 0
    width = max(len(label) for label, _ in counts())
    print("\n".join(f"{label:<{width}}  {count:>7,}" for label, count in counts()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
