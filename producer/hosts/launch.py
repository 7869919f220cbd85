"""Starts a hook by path: `python -I -S …/producer/hosts/launch.py claude_code`. Standard library only.

A script of its own, and a short one, because Python compiles the script anew on every start but not what it imports.
The place of the package is appended to the path, behind the standard library, so that nothing beside it is imported in
its stead. Whatever is broken in the installation, the host's turn goes on: exit 0, nothing printed.
"""

import gc
import os
import sys

if __name__ == "__main__":
    try:
        gc.disable()  # the process is over before collecting would pay
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
        if sys.argv[1:] == ["claude_code"]:
            from producer.hosts.claude_code import main

            main()
    except BaseException:  # noqa: BLE001, S110 an import that fails is seen by `doctor`; the host must not see it
        pass
    os._exit(0)
