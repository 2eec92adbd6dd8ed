"""Files as samples: arrays, tensors, pictures, sounds, tables.

Nothing is unpickled: a .pt file is read with ``weights_only``, a .npy file without objects.
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
    """What a file holds, as an item for ``ethorch.models.samples``.

    - ``.npy``: an array; ``.npz``: its arrays in order, a tuple where there are several.
    - ``.pt``, ``.pth``: tensors as ``torch.save`` wrote them.
    - ``.csv``: numbers, one sample a row; a first line of names is left out.
    - ``.wav``: one sound, float32 of -1..1: [samples] where the model's input has one channel, else [channels, samples].
    - pictures: float32 of 0..1, resized to the height and width of the model's input of rank 3 or 4, with as many channels as it
      has. A model that wants other numbers (a mean taken off) needs ``transform``.

    Args:
        path: the file.
        shapes: of the model's inputs.

    Raises:
        EthorchError: the file is not what its name says.
    """
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise EthorchError(f"{path} is no file of samples; they end in {', '.join(FORMATS)}.")
    try:
        return reader(path, shapes)
    except EthorchError:
        raise
    except ImportError as error:
        raise EthorchError(f"{path} cannot be read without the package {error.name}: pip install {error.name}.") from error
    except Exception as error:  # whatever numpy, torch, wave and Pillow raise for a file that is something else
        said = "it holds Python objects" if "pickle" in str(error).lower() or "weights_only" in str(error).lower() else str(error)
        raise EthorchError(
            f"{path} cannot be read as {path.suffix}: {said.splitlines()[0] if said else type(error).__name__}."
        ) from error


def _numpy(path: Path, shapes: Shapes) -> Any:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found
    with found:
        arrays = tuple(found[name] for name in found.files)
    return arrays if len(arrays) > 1 else arrays[0]


def _torch(path: Path, shapes: Shapes) -> Any:
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def _csv(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    with open(path, encoding="utf-8") as file:
        first = file.readline().strip().split(",")
    named = not all(_is_number(word) for word in first)
    return np.loadtxt(path, delimiter=",", skiprows=int(named), dtype=np.float32, ndmin=2)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _wav(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    with wave.open(str(path), "rb") as file:
        width, channels, data = file.getsampwidth(), file.getnchannels(), file.readframes(file.getnframes())
    if width not in (1, 2, 4):
        raise EthorchError(f"{path} has samples of {8 * width} bits; 8, 16 and 32 can be read.")
    codes = np.frombuffer(data, {1: "u1", 2: "<i2", 4: "<i4"}[width]).astype(np.float64)
    values = (codes - 128) / 128 if width == 1 else codes / 2.0 ** (8 * width - 1)
    sound = values.astype(np.float32).reshape(-1, channels).T
    return sound[0] if channels == 1 else sound


def _image(path: Path, shapes: Shapes) -> npt.NDArray[np.float32]:
    from PIL import Image

    shape = next((shape for shape in shapes if len(shape) in (3, 4)), None)
    if shape is None:
        raise EthorchError(f"{path} is a picture; the model has no input of rank 3 or 4.")
    channels_last = shape[-1] in (1, 3) and shape[-3] not in (1, 3)
    height, width, channels = shape[-3:] if channels_last else (*shape[-2:], shape[-3])
    if channels not in (1, 3):
        raise EthorchError(f"{path} is a picture; the model's input {list(shape)} has {channels} channels, not 1 or 3.")
    with Image.open(path) as picture:
        ready = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    values = (np.asarray(ready, np.float32) / 255).reshape(height, width, channels)
    return values if channels_last else np.ascontiguousarray(values.transpose(2, 0, 1))


#: Ends of the names of pictures and sounds.
MEDIA = (".wav", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: How a file is read, by the end of its name.
FORMATS: dict[str, Callable[[Path, Shapes], Any]] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".pt": _torch,
    ".pth": _torch,
    ".csv": _csv,
    ".wav": _wav,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".webp"), _image),
}
