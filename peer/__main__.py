"""`python -m peer` is `minga`."""

from peer.cli import main

if __name__ == "__main__":
    main()
