"""Fits that asv runs on one commit after the other."""
