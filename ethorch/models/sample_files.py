"""Read sample files: arrays, tensors, images, audio and tables.

Reading cannot execute code, because .pt files are read with ``weights_only``, and .npy files without Python objects.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.support.errors import EthorchError

Shapes = Sequence[tuple[int, ...]]


def read(path: Path, shapes: Shapes) -> Any:
    """Read a file as an item for ``ethorch.models.samples``.

    - ``.npy``: An array.
    - ``.npz``: An array, or arrays by name.
    - ``.pt``, ``.pth``: Tensors written by ``torch.save``.
    - ``.csv``: One sample per row of numbers. A header is skipped.
    - ``.wav``: float32 in -1..1 with shape [samples] for one channel, or [channels, samples] for several.
    - Images: float32 in 0..1, converted to the height, width and channels of the model's first input of rank 3 or 4.

    Args:
        shapes: Shapes of the model's inputs.

    Raises:
        EthorchError: The suffix is unknown, a package is missing, or the file is malformed.
    """
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise EthorchError(f"{path}: expected a sample file with one of the suffixes {', '.join(FORMATS)}.")
    try:
        return reader(path, shapes)
    except EthorchError:
        raise
    except ImportError as error:
        package = "pillow" if error.name == "PIL" else error.name
        raise EthorchError(f"{path} requires the package {package}. Run pip install {package}.") from error
    except Exception as error:  # numpy, torch, wave and Pillow raise many types for malformed files
        reason = (
            "the file contains Python objects"
            if "pickle" in str(error).lower() or "weights_only" in str(error).lower()
            else str(error)
        )
        raise EthorchError(
            f"cannot read {path} as {path.suffix}: {reason.splitlines()[0] if reason else type(error).__name__}."
        ) from error


def _read_numpy(path: Path, shapes: Shapes) -> Any:
    content = np.load(path, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return content
    with content:
        arrays = {name: content[name] for name in content.files}
    return arrays if len(arrays) != 1 else next(iter(arrays.values()))


def _read_torch(path: Path, shapes: Shapes) -> Any:
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def _read_csv(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    with open(path, encoding="utf-8") as file:
        first = file.readline().strip().split(",")
    has_header = not all(_is_number(word) for word in first)
    return np.loadtxt(path, delimiter=",", skiprows=int(has_header), dtype=np.float32, ndmin=2)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_wav(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    with wave.open(str(path), "rb") as file:
        width, channels, data = file.getsampwidth(), file.getnchannels(), file.readframes(file.getnframes())
    if width not in (1, 2, 4):
        raise EthorchError(f"{path}: expected a WAV file with 8, 16 or 32 bits per sample, got {8 * width} bits.")
    codes = np.frombuffer(data, {1: "u1", 2: "<i2", 4: "<i4"}[width]).astype(np.float64)
    values = (codes - 128) / 128 if width == 1 else codes / 2.0 ** (8 * width - 1)
    sound = values.astype(np.float32).reshape(-1, channels).T
    return sound[0] if channels == 1 else sound


def describe_image(path: Path, shapes: Shapes) -> str:
    """Describe the conversion of an image. Return "" if the file is not an image or the image is not converted."""
    if FORMATS.get(path.suffix.lower()) is not _read_image:
        return ""
    from PIL import Image

    values = _read_image(path, shapes)
    has_channels_first = values.shape[0] in (1, 3)
    height, width = values.shape[1:] if has_channels_first else values.shape[:2]
    mode = "L" if 1 in (values.shape[0], values.shape[-1]) else "RGB"
    with Image.open(path) as picture:
        changes = [f"converted from {picture.mode} to {mode}"] if picture.mode != mode else []
        if picture.size != (width, height):
            changes.append(f"resized from {picture.width}x{picture.height} to {width}x{height}")
    return f"{path} was {' and '.join(changes)}" if changes else ""


def _read_image(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    from PIL import Image

    shape = next((shape for shape in shapes if len(shape) in (3, 4)), None)
    if shape is None:
        raise EthorchError(f"{path}: expected a model input of rank 3 or 4 for an image, got none.")
    channels_last = shape[-1] in (1, 3) and shape[-3] not in (1, 3)
    height, width, channels = shape[-3:] if channels_last else (*shape[-2:], shape[-3])
    if channels not in (1, 3):
        raise EthorchError(f"{path}: expected a model input with 1 or 3 channels for an image, got {list(shape)}.")
    with Image.open(path) as picture:
        resized = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    values = (np.asarray(resized, np.float32) / 255).reshape(height, width, channels)
    return values if channels_last else np.ascontiguousarray(values.transpose(2, 0, 1))


#: Suffixes of images and audio files.
MEDIA = (".wav", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: Readers by suffix.
FORMATS: dict[str, Callable[[Path, Shapes], Any]] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".csv": _read_csv,
    ".wav": _read_wav,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".webp"), _read_image),
}
