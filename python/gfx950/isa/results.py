"""Output modifiers of vector instructions: omod (mul:2, mul:4, div:2) and clamp.

float result     multiplied by omod, then clamped to 0 .. 1 (NaN becomes 0)
integer result   clamp saturates an addition or subtraction to the type's range
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950.isa.operands import Build

_INTEGERS = {"u32": np.uint32, "i32": np.int32, "u16": np.uint16, "i16": np.int16}
_SATURATING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "subrev": lambda a, b: b - a,
    "mad": lambda a, b, c: a * b + c,
}


def result_modifiers(b: Build, type_: str) -> Callable:
    """Consumes the modifiers of a float result and returns the function that applies them."""
    factor = float(b.mod("mul", 1)) / float(b.mod("div", 1))
    clamp = bool(b.mod("clamp", False))
    if (factor != 1 or clamp) and type_ not in ("f16", "f32", "f64"):
        raise b.unknown("modifier on an integer result")

    def apply(x: np.ndarray) -> np.ndarray:
        if factor != 1:
            x = x * x.dtype.type(factor)
        return np.where(np.isnan(x), 0, x).clip(0, 1).astype(x.dtype) if clamp else x

    return apply if factor != 1 or clamp else lambda x: x


def result_function(b: Build, name: str, type_: str, fn: Callable) -> Callable:
    """Returns `fn` with the instruction's output modifiers applied."""
    kind = name.removeprefix("v_pk_").removeprefix("v_").split("_")[0]
    if b.mods.get("clamp") and type_ in _INTEGERS and kind in _SATURATING:
        b.mod("clamp")
        info = np.iinfo(_INTEGERS[type_])
        exact = _SATURATING[kind]
        return lambda *values: np.clip(
            exact(*[v.astype(np.int64) for v in values]), info.min, info.max
        ).astype(info.dtype)
    if not {"mul", "div", "clamp"} & b.mods.keys():
        return fn
    finish = result_modifiers(b, type_)
    return lambda *values: finish(fn(*values))
