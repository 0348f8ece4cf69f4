"""The version of the package, for all who must not import the package itself."""

__version__ = "0.1.0"
