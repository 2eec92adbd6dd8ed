"""Generate structured inputs from a seed: photographs, handwritten digits, smooth fields and machine-like sounds.

White noise is a poor replacement for real data. Its statistics are equal in every channel and window, so activations concentrate
around one value and wrong arithmetic is not detected.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


@cache
def _photographs() -> list[Array]:
    """Return the two photographs of scikit-learn, float32[427, 640, 3] in 0..1."""
    from sklearn.datasets import load_sample_images

    return [np.asarray(image, np.float32) / 255 for image in load_sample_images().images]


@cache
def _digits() -> Array:
    """Return scikit-learn's handwritten digits, float32[1797, 8, 8] in 0..1."""
    from sklearn.datasets import load_digits

    return load_digits().images.astype(np.float32) / 16


def resize(image: Array, height: int, width: int) -> Array:
    """Resize an image [H, W, C] bilinearly with aligned corners."""
    rows = np.linspace(0, image.shape[0] - 1, height, dtype=np.float32)
    columns = np.linspace(0, image.shape[1] - 1, width, dtype=np.float32)
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    bottom, right = np.minimum(top + 1, image.shape[0] - 1), np.minimum(left + 1, image.shape[1] - 1)
    down, across = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = image[top][:, left] * (1 - across) + image[top][:, right] * across
    lower = image[bottom][:, left] * (1 - across) + image[bottom][:, right] * across
    return (upper * (1 - down) + lower * down).astype(np.float32)


def smooth_field(rng: np.random.Generator, height: int, width: int, channels: int) -> Array:
    """Return a random field of several octaves, [H, W, C] in 0..1."""
    field = np.zeros((height, width, channels), np.float32)
    for octave in range(4):
        cells = 2 << octave
        field += resize(rng.random((cells, cells, channels), np.float32), height, width) / (1 << octave)
    field -= field.min()
    return field / max(float(field.max()), 1e-6)


def image(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return an RGB image [H, W, 3] in 0..1: usually a crop of a photograph, otherwise colored digits or a smooth field."""
    kind = rng.random()
    if kind < 0.7:
        photograph = _photographs()[rng.integers(2)]
        side = int(rng.integers(64, 400))
        y, x = rng.integers(photograph.shape[0] - side), rng.integers(photograph.shape[1] - side)
        picture = resize(photograph[y : y + side, x : x + side], height, width)
        if rng.random() < 0.5:
            picture = picture[:, ::-1]
        return np.clip(picture * rng.uniform(0.7, 1.3), 0, 1).astype(np.float32)
    background = smooth_field(rng, height, width, 3)
    if kind < 0.85:
        digit = resize(_digits()[rng.integers(1797)][:, :, None], height, width)
        ink = rng.random(3, np.float32)
        return (background * (1 - digit) + ink * digit).astype(np.float32)
    return background


def imagenet_image(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return an image normalized for torchvision's models, float32[3, H, W]."""
    return np.ascontiguousarray(((image(rng, height, width) - IMAGENET_MEAN) / IMAGENET_STD).transpose(2, 0, 1))


def sound(rng: np.random.Generator, samples: int, rate: int = 16000) -> Array:
    """Return a hum with harmonics, an intermittent chirp and noise, float32[samples] around -1..1."""
    t = np.arange(samples, dtype=np.float32) / rate
    pitch = rng.uniform(80, 400)
    wave = np.zeros_like(t)
    for harmonic in range(1, 8):
        phase = rng.uniform(0, 2 * np.pi)
        wave += rng.random() / harmonic * np.sin(2 * np.pi * pitch * harmonic * t + phase)
    start, end = rng.uniform(200, 6000, 2)
    sweep = 2 * np.pi * (start * t + (end - start) * t**2 * rate / (2 * samples))
    envelope = np.exp(-(((np.arange(samples) / samples - rng.random()) / 0.2) ** 2))
    wave += rng.random() * envelope * np.sin(sweep)
    return (wave + 0.02 * rng.standard_normal(samples)).astype(np.float32)


def log_mel(wave: Array, frames: int, bands: int, window: int, hop: int, rate: int = 16000) -> Array:
    """Return the logarithm of the mel-scaled power spectrum, float32[frames, bands], in units of 10 dB."""
    spectrum_bins = window // 2 + 1
    index = np.arange(frames)[:, None] * hop + np.arange(window)[None, :]
    power = np.abs(np.fft.rfft(wave[index] * np.hanning(window), axis=1)) ** 2
    top_mel = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top_mel, bands + 2) / 2595) - 1) / (rate / 2) * (spectrum_bins - 1)
    bins = np.arange(spectrum_bins)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    up, down = (bins - low) / np.maximum(centre - low, 1), (high - bins) / np.maximum(high - centre, 1)
    filters = np.clip(np.minimum(up, down), 0, None)
    return np.log10(power @ filters.T + 1e-4).astype(np.float32)


def cepstrum(rng: np.random.Generator, frames: int = 49, coefficients: int = 10) -> Array:
    """Return mel-frequency cepstral coefficients of one second, float32[frames, coefficients], with 40 ms windows every 20 ms."""
    bands = 40
    mel = log_mel(sound(rng, 16000 + 640), frames, bands, window=640, hop=320)
    k, n = np.arange(coefficients)[:, None], np.arange(bands)[None, :]
    basis = np.cos(np.pi * k * (2 * n + 1) / (2 * bands)) / np.sqrt(bands)
    return (mel @ basis.T).astype(np.float32)


def machine_sound(rng: np.random.Generator) -> Array:
    """Return five frames of 128 mel bands, float32[640], the input of the ToyADMOS autoencoder."""
    return log_mel(sound(rng, 1024 + 512 * 5), 5, 128, window=1024, hop=512).reshape(640)
