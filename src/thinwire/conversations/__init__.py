"""What is said in a round, both ends in one file, in message order.

`derivatives`: private labels; embeddings up, derivatives down. `representations`: shared labels; embeddings up,
everyone's embeddings and the top model down. `evaluation`: scores on test rows, counted apart.
"""
