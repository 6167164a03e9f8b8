"""Speed, measured: ``python -m benchmarks`` runs all of it, prints a table and adds to the history."""
