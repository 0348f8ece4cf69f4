"""Last layers of small networks on four problems made from real images: ours beside what people use.

    GROUPDRO_CIFAR=.../cifar-100-python python -m benchmarks.last_layers

See `python -m benchmarks.last_layers --help`, and `problems`, `training` and `refitting` for what is compared.
"""
