"""What is said in a round, both ends in one file, in message order.

`derivatives` for private labels, `representations` for shared ones; `evaluation` between two rounds.
"""
