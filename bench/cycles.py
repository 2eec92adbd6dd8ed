"""Compare ``ethorch.npu.cycles`` with Vela's own figures on Vela's own streams, operator by operator.

``python -m bench.cycles --impl ethorch|arm [--models NAMES] [--targets NAMES] [--streams FOLDER] [--worst N]``

Vela compiles each network's graphs again with its database enabled. Later changes by ethorch are not included. ``--streams`` stores
Vela's results, so that another run takes seconds. A process measures one implementation.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.implementation import IMPLEMENTATIONS, memory_for, run, stdout_for_json
from bench.models import ALL_MODELS, models_named
from ethorch.npu.cycles import Regions, estimate
from ethorch.npu.ir import decode
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates

TARGETS = ("ethos-u55-128", "ethos-u85-256")
TOLERANCE = 0.05  # of an operator's cycles
HEADER = (
    "| network | target | by | Vela | model | ratio | operators | within 5 %, % |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)
Tables = Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]]


@dataclass(frozen=True)
class VelaStream:
    """A stream as Vela returns it.

    Attributes:
        stream: Driver payload.
        tables: Vela's database.
        cycles: Vela's estimate.
    """

    stream: bytes
    tables: Tables
    cycles: int


@dataclass(frozen=True)
class Row:
    """One operator of Vela's schedule.

    Attributes:
        vela, model: Cycles.
    """

    operator: str
    name: str
    vela: int
    model: int

    @property
    def is_close(self) -> bool:
        return abs(self.model - self.vela) <= TOLERANCE * self.vela


@dataclass(frozen=True)
class Comparison:
    """Cycles of one or more streams.

    Attributes:
        vela, model: Totals.
    """

    vela: int
    model: int
    rows: tuple[Row, ...]

    @property
    def ratio(self) -> float:
        return self.model / self.vela

    @property
    def close_share(self) -> float:
        """The share of operators within the tolerance."""
        return sum(row.is_close for row in self.rows) / len(self.rows)

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(self.vela + other.vela, self.model + other.model, self.rows + other.rows)


def compare(stream: VelaStream, regions: Regions) -> Comparison:
    """Rate a stream and join the result with Vela's schedule."""
    result = estimate(decode(stream.stream), regions)
    parents = {row[0]: row[1] for row in _read(stream.tables, "group", "id", "group_id")}
    ends = sorted((int(offset), id) for offset, id in _read(stream.tables, "queue", "offset", "scheduled_id"))
    offsets = [offset for offset, _ in ends]
    model: dict[str, int] = {}
    for operator in result.operators:
        id = ends[min(bisect_left(offsets, operator.keys[0]), len(ends) - 1)][1]
        while parents.get(id, id) != id:
            id = parents[id]
        model[id] = model.get(id, 0) + operator.cycles
    rows = (
        Row(operator, name, int(cycles), model.get(id, 0))
        for id, operator, name, cycles in _read(stream.tables, "perf", "id", "operator", "name", "op_cycles")
        if parents.get(id, id) == id
    )
    return Comparison(stream.cycles, result.cycles, tuple(rows))


def _read(tables: Tables, table: str, *columns: str) -> Iterator[tuple[str, ...]]:
    header, rows = tables[table]
    at = [list(header).index(column) for column in columns]
    return (tuple(row[n] for n in at) for row in rows)


def compile_streams(impl: str, model: str, target: str) -> list[VelaStream]:
    """Compile a network and return Vela's streams of its delegates.

    Raises:
        RuntimeError: The implementation cannot compile the network.
    """
    record, compiled = run(impl, model, target, calibration=2, evaluation=1)
    if compiled is None:
        raise RuntimeError(f"{impl} cannot compile {model} for {target}: {record['error']}")
    return [read_result(delegate.compile_with_database()) for delegate in compiled.delegates]


def read_result(raw: Any) -> VelaStream:
    """Return the stream of Vela's result, which was compiled with the database enabled."""
    tables = {name: (list(table.header), [list(row) for row in table.data]) for name, table in raw.opt_database.tables.items()}
    return VelaStream(bytes(raw.command_stream), tables, raw.perf_report.totalCycles)


def load_streams(impl: str, model: str, target: str, folder: Path | None) -> list[VelaStream]:
    """Return Vela's streams, read from the folder of earlier results if it contains them."""
    path = folder / f"{impl}-{model}-{target}.pickle" if folder else None
    if path and path.exists():
        return [VelaStream(*fields) for fields in pickle.loads(path.read_bytes())]
    streams = compile_streams(impl, model, target)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps([(s.stream, s.tables, s.cycles) for s in streams]))
    return streams


def compare_network(impl: str, model: str, target: str, folder: Path | None = None) -> Comparison:
    """Return the comparison of all delegates of a network."""
    system_config, memory_mode = memory_for(target)
    regions = read_memory_rates(EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode))
    comparisons = (compare(stream, regions) for stream in load_streams(impl, model, target, folder))
    return sum(comparisons, Comparison(0, 0, ()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cycles", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, required=True)
    parser.add_argument("--models", default="all", help=f"comma-separated, of {', '.join(ALL_MODELS)}")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--streams", type=Path, help="folder of Vela's results")
    parser.add_argument("--worst", type=int, default=0, help="number of operators to list for each network")
    options = parser.parse_args(arguments)
    models = models_named(parser, options.models)
    with stdout_for_json() as descriptor, open(descriptor, "w", closefd=False) as out:
        print(*HEADER, sep="\n", file=out, flush=True)
        for model in models:
            for target in options.targets.split(","):
                result = compare_network(options.impl, model, target, options.streams)
                print(_format(model, target, options.impl, result), file=out, flush=True)
                for row in sorted(result.rows, key=lambda row: -abs(row.model - row.vela))[: options.worst]:
                    print(f"  {row.operator} {row.name}: Vela {row.vela:,}, model {row.model:,}", file=out, flush=True)
    return 0


def _format(model: str, target: str, impl: str, result: Comparison) -> str:
    """Return a row of the table."""
    cells = (model, target, impl, f"{result.vela:,}", f"{result.model:,}", f"{result.ratio:.4f}", f"{len(result.rows)}")
    return f"| {' | '.join(cells)} | {100 * result.close_share:.1f} |"


if __name__ == "__main__":
    sys.exit(main())
