"""`python -m agent_cache` is the command `agent-cache`."""

import sys

from agent_cache.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
