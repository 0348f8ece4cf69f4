"""What other papers do, for comparison."""
