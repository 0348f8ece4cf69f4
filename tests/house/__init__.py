"""Tools that judge a redesign: results as they were, and speed relative to another tree."""
