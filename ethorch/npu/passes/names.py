"""Names of the passes. Import nothing here, so that settings load quickly."""

from __future__ import annotations

#: Name of each pass, and its purpose.
PASSES = {
    "attention": "Compute matrix products of two activations on U55 and U65 as convolutions.",
    "copy-elision": "Remove copies and transposes whose readers or writers can use other strides.",
    "dma-copies": "Copy and transpose feature maps by DMA instead of by kernels on U85.",
    "block-sizes": "Change the blocks in which kernels compute, so that reading, computing and writing overlap better.",
    "resident-weights": "Copy repeatedly read weights to fast memory once, and their scales before each use.",
    "fast-maps": "Move feature maps from DRAM to SRAM, or copy them to SRAM before operators read them repeatedly.",
    "early-transfers": "Start transfers of weights or scales several operators ahead, or omit them.",
    "allocation": "Reallocate buffers with exact lifetimes.",
    "division": "Run operations part by part if the buffers then need at least 4% less memory.",
}
#: Passes that use combinations of registers that Vela does not use, and that ethorch has not tested on devices.
UNTESTED = frozenset({"attention", "copy-elision", "dma-copies", "block-sizes"})
