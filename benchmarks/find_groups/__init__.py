"""Groups found from describing columns: chance findings, planted groups, rivals, real tables, speed."""
