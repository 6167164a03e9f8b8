"""The memory of a training process on its device: released, taken back, limited. One interface, three tiers."""
