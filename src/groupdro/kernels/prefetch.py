"""Prefetching: a hint to load memory that will be needed soon."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["AHEAD", "prefetch"]

AHEAD = 32  # entries of sparse rows between a hint and the use of what it loads


@intrinsic
def prefetch(typingctx: Any, array: Any, i: Any) -> Any:
    """Prefetch the cache line in which array[i] begins. Affects only speed."""
    del typingctx, i
    signature = types.void(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        first = [arguments[1], *[context.get_constant(types.intp, 0)] * (kind.ndim - 1)]
        place = cgutils.get_item_pointer(context, builder, kind, view, first, wraparound=False)
        number = ir.IntType(32)
        pointer = builder.bitcast(place, ir.IntType(8).as_pointer())
        form = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], form)
        read, keep, data = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return signature, generate
