from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.support.errors import SpecError
from ethorch.targets.compile_spec import ArmCompileSpec
from ethorch.targets.npus import LIMITS, TUNING
from ethorch.targets.tosa_specification import TosaSpecification
from ethorch.targets.tuning import UNTUNED, Tuning
from ethorch.tosa.limits import Limits
from ethorch.tosa.opset import OPSET


@dataclass(frozen=True)
class TosaTarget:
    """A TOSA specification as a target, with the attributes of :class:`Target` that lowering uses."""

    name: str
    limits: Mapping[str, Limits]
    tuning: Tuning
    floats: tuple[str, ...] = ()
    integers: bool = True

    def __str__(self) -> str:
        return self.name


class TosaCompileSpec(ArmCompileSpec):
    """A compile spec that produces TOSA flatbuffers, for compilation by another tool.

    Raises:
        SpecError: The specification is invalid.
    """

    _OUTPUT_FORMAT = "tosa"

    def __init__(self, tosa_spec: TosaSpecification | str):
        super().__init__()
        self.tosa_spec = TosaSpecification.create_from_string(tosa_spec) if isinstance(tosa_spec, str) else tosa_spec

    @property
    def target(self) -> TosaTarget:
        """The specification as a target. It is limited only by omitted extensions and, with ``u55``, by the limits of Ethos-U55."""
        family = "u55" if self.tosa_spec.is_U55_subset else ""
        limits = dict(LIMITS.get(family, {}))
        if self.tosa_spec.support_integer() and not self.tosa_spec.support_extension("int16"):
            narrow = Limits(
                dtypes=frozenset({"BOOL", "INT4", "INT8", "INT32", "FP32", "FP16", "BF16"}),
                remedy="Add +int16 to the specification.",
            )
            limits |= {name: narrow for name in OPSET if name not in limits and name not in ("RESCALE", "CAST")}
        for name, row in OPSET.items():
            if row.extension and not self.tosa_spec.support_extension(row.extension):
                limits[name] = Limits(present=False, remedy=f"Add +{row.extension} to the specification.")
        floats: tuple[str, ...] = ("FP32", "FP16") if self.tosa_spec.support_float() else ()
        floats += ("BF16",) if self.tosa_spec.support_extension("bf16") else ()
        return TosaTarget(str(self.tosa_spec), limits, TUNING.get(family, UNTUNED), floats, self.tosa_spec.support_integer())

    def _own_items(self) -> dict[str, str]:
        return {"tosa_spec": str(self.tosa_spec)}

    @classmethod
    def _from_items(cls, items: dict[str, str]) -> TosaCompileSpec:
        try:
            return cls(items.pop("tosa_spec"))
        except KeyError:
            raise SpecError(
                "the compile spec list has no 'tosa_spec'. Use the list returned by TosaCompileSpec.to_list()."
            ) from None

    def __repr__(self) -> str:
        return f"TosaCompileSpec({str(self.tosa_spec)!r})"
