"""Studies that compare trainings: their rows, runs, table and figure."""
