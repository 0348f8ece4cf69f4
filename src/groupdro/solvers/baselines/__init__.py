"""Algorithms from other papers, for comparison."""
