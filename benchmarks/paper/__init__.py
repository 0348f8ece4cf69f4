"""The paper's experiments at equal budgets: set-ups, methods, tuning, runs, figures, tables and the page of results."""
