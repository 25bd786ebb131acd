"""The command line ``txdecode``."""

from txdecode.runtime.cli.main import main

__all__ = ["main"]
