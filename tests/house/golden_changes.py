"""Why fits differ from the golden record, where that was intended.

Keys are names of fits, or patterns of names with * and ?. Once the record is made anew, its reasons go.
"""

__all__ = ["CHANGES"]

CHANGES: dict[str, str] = {
    "adult; GroupDROClassifier; float32; solver=aleg, tol=0.01": (
        "The pass with which the stage for the average begins after ALEG is certified before its first step."
    ),
    "sqp lbfgs; *": (
        "Outstanding directions count in units of each column's own size, which the diagonal already knows, and lower "
        "bounds of several outputs are left out until they may end the run: mostly fewer passes."
    ),
}
