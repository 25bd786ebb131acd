"""Vector code that numba's loops call: written in LLVM's own terms, eight fp32 lanes at a time.

Numba compiles loops without relaxed floating point, as wanted, and then neither vectorises a sum nor fuses a
product with one. Here both are spelled out. Addresses are integers; nothing is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
"""Columns of a panel, and lanes of every vector."""

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_V = ir.VectorType(_F32, LANES)
_VI = ir.VectorType(_I32, LANES)

_AHEAD = 1024
"""Bytes between what is computed with and what is asked for: the processor's own guess stops at page borders."""

Body = Callable[["Code", Sequence[Any]], Any]


def fp32(value: float) -> float:
    """``value`` rounded to fp32, as LLVM wants constants."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


class Code:
    """A builder with the handful of operations that are used here."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def call(self, name: str, args: Sequence[Any], result: Any) -> Any:
        """An LLVM intrinsic or a C function."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(self.b.module, kind, name)  # type: ignore[no-untyped-call]
        return self.b.call(function, args)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        name = "llvm.fma.f32" if a.type == _F32 else f"llvm.fma.v{LANES}f32"
        return self.call(name, (a, b, c), a.type)

    def floor(self, a: Any) -> Any:
        """The largest whole number up to each lane."""
        return self.call(f"llvm.floor.v{LANES}f32", (a,), _V)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of each lane; ``b`` where one is NaN."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a: Any, b: Any) -> Any:
        """The smaller of each lane; ``b`` where one is NaN."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def splat(self, scalar: Any) -> Any:
        """A scalar in every lane."""
        undefined = ir.Constant(_V, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(_VI, [0] * LANES))

    def number(self, value: float) -> Any:
        """A constant in every lane."""
        return ir.Constant(_V, [fp32(value)] * LANES)

    def load(self, address: Any, kind: Any = _V) -> Any:
        """What lies at an address, aligned to its elements."""
        return self.b.load(self.b.inttoptr(address, kind.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        """Put a value at an address."""
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=4)

    def ask_for(self, address: Any) -> None:
        """Have what lies at an address brought into the cache; harmless where nothing lies."""
        place = self.b.inttoptr(address, ir.IntType(8).as_pointer())
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        self.call("llvm.prefetch.p0", (place, read, keep, data), ir.VoidType())

    def at(self, address: Any, byte: int) -> Any:
        """An address some bytes further on."""
        return self.b.add(address, ir.Constant(_I64, byte)) if byte else address

    def loop(
        self, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """``count`` (at least one) turns of ``body(index, values)`` → values; the values after the last."""
        b = self.b
        before, turn, after = b.block, b.append_basic_block("turn"), b.append_basic_block("after")
        b.branch(turn)
        b.position_at_end(turn)
        index = b.phi(_I64)
        index.add_incoming(ir.Constant(_I64, 0), before)
        values = []
        for value in start:
            values.append(b.phi(value.type))
            values[-1].add_incoming(value, before)
        made = body(index, list(values))
        following = b.add(index, ir.Constant(_I64, 1))
        index.add_incoming(following, b.block)
        for phi, value in zip(values, made, strict=True):
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, count), turn, after)
        b.position_at_end(after)
        return made

    def exp(self, x: Any) -> Any:
        """exp of each lane within two units in the last place: a power of two times a polynomial (after Cephes'
        expf). Below -87, and of NaN, it is that of -87; above 88 that of 88."""
        b = self.b
        x = self.smaller(self.larger(x, self.number(-87.0)), self.number(88.0))
        n = self.floor(self.fma(x, self.number(1.4426950408889634), self.number(0.5)))
        r = self.fma(n, self.number(-0.693359375), x)
        r = self.fma(n, self.number(2.12194440e-4), r)
        y = self.number(1.9875691500e-4)
        for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            y = self.fma(y, r, self.number(term))
        y = b.fadd(self.fma(y, b.fmul(r, r), r), self.number(1.0))
        power = b.shl(
            b.add(b.fptosi(n, _VI), ir.Constant(_VI, [127] * LANES)), ir.Constant(_VI, [23] * LANES)
        )
        return b.fmul(y, b.bitcast(power, _V))

    def across(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """All lanes joined into a scalar, in the order of a tree: (0,4) (1,5) …, then (0,2) …, then (0,1)."""
        parts = [self.b.extract_element(vector, ir.Constant(_I32, lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [join(parts[i], parts[i + half]) for i in range(half)]
        return parts[0]


def vector_code(arguments: Sequence[Any], result: Any, body: Body) -> Any:
    """A function of ``arguments`` for numba's loops, inlined where it is called."""
    names = ", ".join(f"a{index}" for index in range(len(arguments)))

    def typed(context: Any, *_: Any) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, values: Sequence[Any]) -> Any:
            made = body(Code(builder), values)
            return target.get_dummy_value() if made is None else made

        return result(*arguments), generate

    # Numba reads the parameters' names and count off the function it is given.
    scope: dict[str, Any] = {"typed": typed}
    exec(f"def function(context, {names}):\n    return typed(context, {names})", scope)
    return intrinsic(scope["function"])


def _block(
    code: Code, xs: Sequence[Any], ws: Sequence[Any], pairs: Any, outs: Sequence[Any], more: Any
) -> None:
    """A few rows times a few panels, all sums in registers: rows at ``xs``, panels at ``ws``, results at ``outs``."""
    b, panels = code.b, len(ws)
    places = [code.at(out, panel * LANES * 4) for out in outs for panel in range(panels)]
    with b.if_else(b.icmp_signed("!=", more, ir.Constant(_I64, 0))) as (then, otherwise):
        with then:
            found = [code.load(place) for place in places]
            from_there = b.block
        with otherwise:
            from_zero = b.block
    start = []
    for value in found:
        start.append(b.phi(_V))
        start[-1].add_incoming(value, from_there)
        start[-1].add_incoming(code.number(0.0), from_zero)
    sixteen, upper = ir.Constant(_VI, [16] * LANES), ir.Constant(_VI, [-65536] * LANES)

    def turn(index: Any, sums: list[Any]) -> list[Any]:
        at_w, at_x = b.mul(index, ir.Constant(_I64, LANES * 4)), b.mul(index, ir.Constant(_I64, 8))
        words = [code.load(b.add(address, at_w), _VI) for address in ws]
        for address in ws:
            code.ask_for(code.at(b.add(address, at_w), _AHEAD))
        inputs = [b.add(address, at_x) for address in xs]
        for half in (0, 1):
            taken = [b.shl(word, sixteen) if half == 0 else b.and_(word, upper) for word in words]
            weights = [b.bitcast(word, _V) for word in taken]
            for row, place in enumerate(inputs):
                value = code.splat(code.load(code.at(place, half * 4), _F32))
                for panel, weight in enumerate(weights):
                    at = row * panels + panel
                    sums[at] = code.fma(value, weight, sums[at])
        return sums

    for value, place in zip(code.loop(pairs, start, turn), places, strict=True):
        code.store(value, place)


def _product(rows: int, group: int) -> Body:
    """``rows`` rows of fp32 times any number of panels of bf16, ``group`` at a time: each sum over pairs of inputs in
    their order, even before odd, two fused steps a pair, whatever ``rows`` and ``group`` are."""

    def body(code: Code, args: Sequence[Any]) -> None:
        x, row_bytes, w, panel_bytes, pairs, panels, out, out_bytes, more = args
        b = code.b

        def some(first: Any, count: int) -> None:
            at_w, at_out = b.mul(first, panel_bytes), b.mul(first, ir.Constant(_I64, LANES * 4))
            xs, ws, outs = [x], [b.add(w, at_w)], [b.add(out, at_out)]
            for _ in range(rows - 1):
                xs.append(b.add(xs[-1], row_bytes))
                outs.append(b.add(outs[-1], out_bytes))
            for _ in range(count - 1):
                ws.append(b.add(ws[-1], panel_bytes))
            _block(code, xs, ws, pairs, outs, more)

        def grouped(index: Any, _: list[Any]) -> list[Any]:
            some(b.mul(index, ir.Constant(_I64, group)), group)
            return []

        def single(index: Any, _: list[Any]) -> list[Any]:
            some(b.add(done, index), 1)
            return []

        groups = b.sdiv(panels, ir.Constant(_I64, group))
        done = b.mul(groups, ir.Constant(_I64, group))
        left = b.sub(panels, done)
        with b.if_then(b.icmp_signed(">", groups, ir.Constant(_I64, 0))):
            code.loop(groups, [], grouped)
        with b.if_then(b.icmp_signed(">", left, ir.Constant(_I64, 0))):
            code.loop(left, [], single)

    return body


_WORD = types.intp
_FLOAT = types.float32


def product(rows: int, group: int) -> Any:
    """``f(x, row_bytes, w, panel_bytes, pairs, panels, out, out_bytes, more)``: ``rows`` rows at ``x`` times panels
    at ``w`` into rows at ``out``; with ``more`` = 1 sums go on from what is there. ``group`` panels share a pass."""
    return vector_code([_WORD] * 9, types.void, _product(rows, group))


def _square_sum(code: Code, args: Sequence[Any]) -> Any:
    x, count = args
    b = code.b

    def turn(index: Any, sums: list[Any]) -> list[Any]:
        value = code.load(b.add(x, b.mul(index, ir.Constant(_I64, LANES * 4))))
        return [code.fma(value, value, sums[0])]

    return code.across(code.loop(count, [code.number(0.0)], turn)[0], b.fadd)


def _largest(code: Code, args: Sequence[Any]) -> Any:
    x, count = args
    b = code.b

    def turn(index: Any, best: list[Any]) -> list[Any]:
        value = code.load(b.add(x, b.mul(index, ir.Constant(_I64, LANES * 4))))
        return [code.larger(value, best[0])]

    return code.across(code.loop(count, [code.number(float("-inf"))], turn)[0], code.larger)


def _argmax(code: Code, args: Sequence[Any]) -> None:
    x, count, out = args
    b = code.b
    lanes = ir.Constant(_VI, list(range(LANES)))
    start = [code.number(float("-inf")), ir.Constant(_VI, [0] * LANES), code.number(0.0)]

    def turn(index: Any, values: list[Any]) -> list[Any]:
        best, place, damage = values
        value = code.load(b.add(x, b.mul(index, ir.Constant(_I64, LANES * 4))))
        above = b.fcmp_ordered(">", value, best)
        first = b.insert_element(ir.Constant(_VI, ir.Undefined), b.trunc(index, _I32), ir.Constant(_I32, 0))
        here = b.shuffle_vector(first, ir.Constant(_VI, ir.Undefined), ir.Constant(_VI, [0] * LANES))
        # Zero times what is not finite is no number, and stays so.
        damage = code.fma(value, code.number(0.0), damage)
        return [b.select(above, value, best), b.select(above, here, place), damage]

    best, place, damage = code.loop(count, start, turn)
    places = b.add(b.mul(place, ir.Constant(_VI, [LANES] * LANES)), lanes)
    code.store(best, out)
    code.store(places, code.at(out, LANES * 4))
    code.store(damage, code.at(out, 2 * LANES * 4))


def _exp_sum(code: Code, args: Sequence[Any]) -> Any:
    x, count, most = args
    b = code.b
    shift = code.splat(most)

    def turn(index: Any, sums: list[Any]) -> list[Any]:
        at = b.add(x, b.mul(index, ir.Constant(_I64, LANES * 4)))
        value = code.load(at)
        seen = b.fcmp_ordered(">", value, code.number(float("-inf")))
        weight = b.select(seen, code.exp(b.fsub(value, shift)), code.number(0.0))
        code.store(weight, at)
        return [b.fadd(sums[0], weight)]

    return code.across(code.loop(count, [code.number(0.0)], turn)[0], b.fadd)


def _share(code: Code, y: Any) -> Any:
    """sigmoid(y); NaN where y is."""
    b = code.b
    share = b.fdiv(code.number(1.0), b.fadd(code.number(1.0), code.exp(b.fsub(code.number(0.0), y))))
    return b.select(b.fcmp_ordered("==", y, y), share, y)


def _sigmoid(code: Code, args: Sequence[Any]) -> None:
    x, out, count = args
    b = code.b

    def turn(index: Any, _: list[Any]) -> list[Any]:
        at = b.mul(index, ir.Constant(_I64, LANES * 4))
        code.store(_share(code, code.load(b.add(x, at))), b.add(out, at))
        return []

    code.loop(count, [], turn)


def _silu_multiply(code: Code, args: Sequence[Any]) -> None:
    gate, up, out, count = args
    b = code.b

    def turn(index: Any, _: list[Any]) -> list[Any]:
        at = b.mul(index, ir.Constant(_I64, LANES * 4))
        y = code.load(b.add(gate, at))
        made = b.fmul(b.fmul(y, _share(code, y)), code.load(b.add(up, at)))
        code.store(made, b.add(out, at))
        return []

    code.loop(count, [], turn)


def _claim(code: Code, args: Sequence[Any]) -> Any:
    place = code.b.inttoptr(args[0], _I64.as_pointer())
    return code.b.atomic_rmw("add", place, ir.Constant(_I64, 1), "seq_cst")


def _seen(code: Code, args: Sequence[Any]) -> Any:
    return code.b.load_atomic(code.b.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)


def _give_way(code: Code, args: Sequence[Any]) -> None:
    code.call("sched_yield", (), _I32)


square_sum = vector_code([_WORD, _WORD], _FLOAT, _square_sum)
"""``f(x, count)``: sum of squares of ``count`` vectors at ``x``."""
largest = vector_code([_WORD, _WORD], _FLOAT, _largest)
"""``f(x, count)``: the largest number of ``count`` vectors at ``x``."""
argmax_lanes = vector_code([_WORD] * 3, types.void, _argmax)
"""``f(x, count, out)``: of ``count`` vectors at ``x`` each lane's largest number, the place of its first occurrence
(int32), and zero, or NaN where a number of the lane is not finite: [3, 8] at ``out``."""
exp_sum = vector_code([_WORD, _WORD, _FLOAT], _FLOAT, _exp_sum)
"""``f(x, count, most)``: replace ``count`` vectors by exp(x - most), and -inf by zero; their sum."""
sigmoid = vector_code([_WORD] * 3, types.void, _sigmoid)
"""``f(x, out, count)``: sigmoid of ``count`` vectors."""
silu_multiply = vector_code([_WORD] * 4, types.void, _silu_multiply)
"""``f(gate, up, out, count)``: silu(gate) * up for ``count`` vectors."""
claim = vector_code([_WORD], _WORD, _claim)
"""``f(place)``: add one to the counter at ``place``, seen by all threads; what it was before."""
seen = vector_code([_WORD], _WORD, _seen)
"""``f(place)``: the counter at ``place``, and all that was written before it was set."""
give_way = vector_code([], types.void, _give_way)
"""``f()``: let another thread run."""
