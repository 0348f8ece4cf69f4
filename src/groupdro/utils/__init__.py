"""What every room may use: argument checks, files, threads, types."""
