from .assertions import assert_bit_exact, assert_runs_on_npu
from .recording import record
from .tester import EthosUTester

__all__ = [
    "EthosUTester",
    "assert_bit_exact",
    "assert_runs_on_npu",
    "record",
]
