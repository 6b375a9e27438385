"""Training on one machine: model, data, worker process, optimizer, checkpoints. Nothing here knows of other peers."""
