"""Ways to break the package on purpose, which its checks must find."""

from groupdro.run import ending, run


def believe_every_gap(monkeypatch) -> None:
    """Let every run end after its first epoch as if its gap were within the tolerance."""
    for module in (run, ending):
        monkeypatch.setattr(module, "met_tolerance", lambda gap, upper, tol, atol: "tol")
