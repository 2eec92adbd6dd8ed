from .batch import Place, run_many
from .machine import Machine
from .program import Program
from .source_map import Source, Sources
from .staging import staging_bytes
from .vela_files import run_vela

__all__ = ["Machine", "Place", "Program", "Source", "Sources", "run_many", "run_vela", "staging_bytes"]
