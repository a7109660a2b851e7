"""`python -m thinwire`, and what torchrun starts: `torchrun --nproc-per-node 2 -m thinwire party ...`."""

from thinwire.cli import main

if __name__ == "__main__":
    main()
