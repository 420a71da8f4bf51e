"""From records to conclusions: readings, statistics, experiments, tables and the paper's claims."""
