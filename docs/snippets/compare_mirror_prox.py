"""Mirror prox beside ALEG, at equal budgets."""

from benchmarks.paper.contenders import METHODS, Method
from benchmarks.paper.runs import curve_of
from mirror_prox import MirrorProx

METHODS["mirror prox"] = Method("gdro", lambda _: MirrorProx())

for name in ("mirror prox", "ALEG"):
    points = curve_of("gdro_synthetic", name, setting=(), seed=0)
    value, multiples = points[["train", "multiples"]].iloc[-1]
    print(f"{name}: {value:.4f} after {multiples:.1f} multiples of the rows")
