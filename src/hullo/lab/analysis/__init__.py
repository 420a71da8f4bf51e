"""Analysis of records: readings, statistics, experiments, tables and the paper's claims."""
