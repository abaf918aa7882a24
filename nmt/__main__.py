"""`python -m nmt` is the command `nmt`."""

from __future__ import annotations

from nmt.cli import main

if __name__ == "__main__":
    main()
