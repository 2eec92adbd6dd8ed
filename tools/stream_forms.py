"""Collect the register combinations of Vela's streams: ``ethorch/npu/verify/forms_*.txt``.

``python -m tools.stream_forms [--every N] [--keep]`` compiles the cases of ``bench.payload_cases``, all in about an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from ethorch.formats.files import write_whole
from ethorch.formats.pte import read
from ethorch.npu.verify import forms
from ethorch.npu.verify.instruction import decode_instructions
from ethorch.support.errors import EthorchError, MachineFault


def list_stream_forms(payload: bytes) -> set[tuple[str, str]]:
    """Return (family, combination) for the operations of a payload, or nothing for a stream with branches."""
    try:
        listing = decode_instructions(payload)
    except MachineFault:
        return set()
    return {(listing.npu.family, form) for facts in listing.facts() for form in forms.list_forms(facts)}


def compile_payloads(every: int) -> Iterator[bytes]:
    """Iterate over the command streams of every n-th case that compiles."""
    from bench.models import ALL_MODELS
    from bench.payload_cases import all_cases

    for number, case in enumerate(all_cases(list(ALL_MODELS))):
        if number % every:
            continue
        try:
            with mock.patch("ethorch.targets.compile_spec.parse_passes", return_value=frozenset()):  # Vela's streams
                program = read(case.compile())
        except EthorchError:
            continue
        yield from (delegate.payload.commands for method in program.methods.values() for delegate in method.delegates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="compile every n-th case")
    parser.add_argument("--keep", action="store_true", help="keep the combinations in the files")
    arguments = parser.parse_args()
    found: dict[str, set[str]] = {family: set() for family in forms.NEW_FORMS}
    if arguments.keep:
        found = {family: set(forms.load_forms(family)) for family in found}
    for payload in compile_payloads(arguments.every):
        for family, form in list_stream_forms(payload):
            found[family].add(form)
    folder = Path(forms.__file__).parent
    for family, lines in found.items():
        write_whole(folder / f"forms_{family}.txt", "".join(f"{line}\n" for line in sorted(lines)).encode())
        print(f"{family}: {len(lines)} combinations")


if __name__ == "__main__":
    main()
