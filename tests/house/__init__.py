"""Tools that judge a redesign: results as they were, speed relative to another tree, and counts on the source."""
