"""ENGINE: the algorithms, from a tensor to a trained model: no files, no sockets.

A method is a value on four axes (compress and wire, schedule, privacy, channel), put together in `recipe`.
May import base.
"""
