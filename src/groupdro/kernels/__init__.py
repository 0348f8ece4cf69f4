"""Compiled loops on flat arrays. Nothing here imports from the rest of the package.

Kernels are module-level functions of arrays and scalars, choose the loss by an integer code, write in place and
release the GIL: this is the form whose compiled code the disk cache finds again in a later process.
"""
