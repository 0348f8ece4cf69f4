"""How often statements about groups hold: the spread between them, a new group, and their calibration."""
