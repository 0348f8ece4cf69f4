"""Evaluation of fitted models by group: metrics, reports, folds, plots."""
