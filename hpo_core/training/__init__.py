"""Training: what a training function sees, and the child processes it runs in. Nothing here imports torch."""
