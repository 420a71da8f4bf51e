"""Train populations: loaders, training, checkpoints, queues of runs, and where they run."""
