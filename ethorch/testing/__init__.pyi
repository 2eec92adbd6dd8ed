from .assertions import assert_bit_exact, assert_runs_on_npu
from .pipelines import (
    BasePipeline,
    EthosU55PipelineINT,
    EthosU65PipelineINT,
    EthosU85PipelineINT,
    OpNotSupportedPipeline,
    TosaPipelineFP,
    TosaPipelineINT,
)
from .recording import record
from .tester import EthosUTester

__all__ = [
    "BasePipeline",
    "EthosU55PipelineINT",
    "EthosU65PipelineINT",
    "EthosU85PipelineINT",
    "EthosUTester",
    "OpNotSupportedPipeline",
    "TosaPipelineFP",
    "TosaPipelineINT",
    "assert_bit_exact",
    "assert_runs_on_npu",
    "record",
]
