"""Helpers shared by all subpackages: argument checks, files, threads, types."""
