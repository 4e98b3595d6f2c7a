"""Models written for one example. Each file has `example()`: the model and a batch of inputs."""
