"""What carries the bytes between parties: the interface, the simulator, its link clock, and the byte ledger.

Knows no tensors and never imports torch.
"""
