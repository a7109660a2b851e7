"""BASE: the small words everything else is written in: types, errors and their explanations, seeds, formatting.

May import nothing else of thinwire.
"""
