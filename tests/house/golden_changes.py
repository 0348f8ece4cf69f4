"""Why fits differ from the golden record, where that was intended.

Keys are names of fits, or patterns of names with * and ?. Once the record is made anew, its reasons go.
"""

__all__ = ["CHANGES"]

CHANGES: dict[str, str] = {
    "adult; GroupDROClassifier; float32; solver=aleg, tol=0.01": (
        "The pass with which the stage for the average begins after ALEG is certified before its first step."
    ),
}
