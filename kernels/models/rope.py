"""Rotary frequencies in double precision: no tensor library, the same numbers on every machine."""

from __future__ import annotations

import math

from txdecode.kernels.models.config import DenseConfig, RopeScaling


def inverse_frequencies(config: DenseConfig) -> list[float]:
    """The head_dim / 2 angular frequencies, radians a token, highest first.

    Position p turns pair i by ``p * result[i]``. Agrees with transformers' ``ROPE_INIT_FUNCTIONS`` to the
    rounding of single precision, in which that library computes.
    """
    dim = config.head_dim
    plain = [config.rope_theta ** (-2.0 * i / dim) for i in range(dim // 2)]
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return [frequency / scaling.factor for frequency in plain]
    if scaling.kind == "llama3":
        return [_llama3(frequency, scaling) for frequency in plain]
    if scaling.kind == "yarn":
        return _yarn(plain, config.rope_theta, scaling)
    assert scaling.kind == "divisors", scaling.kind
    return [frequency / divisor for frequency, divisor in zip(plain, scaling.divisors, strict=True)]


def attention_factor(config: DenseConfig) -> float:
    """What multiplies cos and sin: 1 except for YaRN (arXiv 2309.00071, section 3.4)."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_context / scaling.low_freq_factor:
        return frequency / scaling.factor
    rotations = scaling.original_context / wavelength
    kept = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1.0 - kept) * frequency / scaling.factor + kept * frequency


def _yarn(plain: list[float], theta: float, scaling: RopeScaling) -> list[float]:
    dim = 2 * len(plain)

    def border(rotations: float) -> float:
        turns = scaling.original_context / (rotations * 2.0 * math.pi)
        return dim * math.log(turns) / (2.0 * math.log(theta))

    low, high = border(scaling.beta_fast), border(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper clamp is dim - 1, although only dim / 2 frequencies exist: the published form.
    low, high = max(low, 0.0), min(high, dim - 1.0)
    span = high - low if high != low else 0.001
    blended = []
    for i, frequency in enumerate(plain):
        stretched = min(max((i - low) / span, 0.0), 1.0)
        blended.append(frequency / scaling.factor * stretched + frequency * (1.0 - stretched))
    return blended
