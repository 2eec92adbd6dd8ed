"""The test pipelines of ExecuTorch's Arm backend, which run their programs in the simulator."""

from ethorch.arm.test.pipelines import (
    BasePipeline,
    EthosU55PipelineINT,
    EthosU65PipelineINT,
    EthosU85PipelineINT,
    OpNotSupportedPipeline,
    TosaPipelineFP,
    TosaPipelineINT,
)

__all__ = [
    "BasePipeline",
    "EthosU55PipelineINT",
    "EthosU65PipelineINT",
    "EthosU85PipelineINT",
    "OpNotSupportedPipeline",
    "TosaPipelineFP",
    "TosaPipelineINT",
]
