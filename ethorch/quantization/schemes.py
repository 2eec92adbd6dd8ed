"""What the schemes of ``Settings`` are to the quantizer."""

from __future__ import annotations

from collections.abc import Callable

from ethorch.quantization.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.targets.settings import FLOAT, Settings

#: Name of a scheme -> makes its config; the argument says whether it is for training.
CONFIGS: dict[str, Callable[[bool], QuantizationConfig]] = {
    "int8": lambda is_qat: get_symmetric_quantization_config(is_qat=is_qat),
    "int8-per-tensor": lambda is_qat: get_symmetric_quantization_config(is_per_channel=False, is_qat=is_qat),
    "a16w8": lambda is_qat: get_symmetric_a16w8_quantization_config(is_qat=is_qat),
    "a8w4": lambda is_qat: get_symmetric_a8w4_quantization_config(is_qat=is_qat),
}


#: Type of a program's inputs and outputs -> makes the config for ``set_io``.
IO_CONFIGS: dict[str, Callable[[], QuantizationConfig]] = {
    "int8": get_symmetric_quantization_config,
    "uint8": get_uint8_io_quantization_config,
    "int16": get_symmetric_a16w8_quantization_config,
}


def quantizer_for(settings: Settings, config: QuantizationConfig | None = None, is_qat: bool = False) -> EthosUQuantizer:
    """The quantizer with the settings' schemes.

    Args:
        settings: what the user chose.
        config: instead of the scheme's, for the model as a whole.
        is_qat: made for training.
    """
    quantizer = EthosUQuantizer(settings.spec).set_global(config or CONFIGS[settings.scheme](is_qat))
    for name, scheme in settings.modules.items():
        quantizer.set_module_name(name, None if scheme == FLOAT else CONFIGS[scheme](is_qat))
    if settings.io in IO_CONFIGS:
        quantizer.set_io(IO_CONFIGS[settings.io]())
    return quantizer
