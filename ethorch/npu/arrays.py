"""Array types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # elements of a storage or computation type
Ints = npt.NDArray[np.int64]  # exact integers
Bytes = npt.NDArray[np.uint8]  # memory
Dtype = np.dtype[Any]
