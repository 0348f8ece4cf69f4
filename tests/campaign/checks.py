"""All checks of the campaign."""

import importlib
import pkgutil

import tests.campaign as package

#: Each module of this package that has checks calls its own list CHECKS.
CHECKS = [
    check
    for module in pkgutil.iter_modules(package.__path__)
    if module.name.startswith("part_")
    for check in importlib.import_module(f"{package.__name__}.{module.name}").CHECKS
]
