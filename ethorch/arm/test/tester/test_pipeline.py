"""The names of ``executorch.backends.arm.test.tester.test_pipeline``."""

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
