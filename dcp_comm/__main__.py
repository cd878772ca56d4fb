"""``python -m dcp_comm`` is ``dcp-comm``."""

import sys

from dcp_comm.cli import main

if __name__ == "__main__":
    sys.exit(main())
