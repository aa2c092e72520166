"""How much faster a job trains on several GPUs, and how many it may use."""
