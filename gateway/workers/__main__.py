"""`python -m gateway.workers`: one worker. Only the supervisor starts it."""

import signal
import sys

if __name__ == "__main__":
    # An interrupt at the terminal reaches all processes: the supervisor tells what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from gateway.workers.worker import main

    sys.exit(main())
