"""How a fitted model does on its groups: metrics, reports, folds, plots."""
