"""Why fits differ from the golden record, where that was intended.

Keys are names of fits, or patterns of names with * and ?. Once the record is made anew, its reasons go.
"""

__all__ = ["CHANGES"]

CHANGES: dict[str, str] = {}
