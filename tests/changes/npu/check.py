"""Check that an ARGMAX of 100 channels is refused for Ethos-U65 alone, as the partitioner finds out: by lowering it."""

from ethorch.lower.builder.builder import Builder
from ethorch.support.errors import Unsupported
from ethorch.targets.npus import TARGETS


def refusal(name: str) -> str:
    """Return the id of the reason why a target does not run the ARGMAX, or an empty string."""
    b = Builder(TARGETS[name].limits, target=name)
    try:
        b.emit("ARGMAX", b.input("x", (1, 4, 100), "INT8"), axis=2)
    except Unsupported as error:
        return error.reason.id
    return ""


found = {name: refusal(name) for name in ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")}
assert found == {"ethos-u55-128": "", "ethos-u65-256": "ARGMAX.extent", "ethos-u85-256": ""}, found
