"""Compiled loops on flat arrays. Nothing here imports from the rest of the package.

Kernels are module-level functions of arrays and scalars. They select the loss by an integer code, write in place and
release the GIL. In this form, numba's disk cache finds their compiled code again in a later process.
"""
