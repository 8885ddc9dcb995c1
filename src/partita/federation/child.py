"""`python -m partita.federation.child COMMAND …`: become that command, and be told to end when the parent dies."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            return
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
