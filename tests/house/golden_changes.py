"""Why fits differ from the golden record, where that was intended.

Keys are names of fits, or patterns of names with * and ?. Once the record is made anew, its reasons go.
"""

__all__ = ["CHANGES"]

_REASON = "only the reason reads otherwise: ALEG takes every domain and set of weights, of which the simplex is one"

CHANGES: dict[str, str] = {"auto; *simplex*": _REASON, "alem; *simplex*": _REASON}
