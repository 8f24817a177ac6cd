"""What a machine and a user of it may be called.

These names may end up in the command line of a proxy, which the configuration of ssh of the control plane's
user can have: one that begins with a dash would be an option there.
"""

import re
from typing import Final

ADDRESS: Final = re.compile(r"[A-Za-z0-9_:\[][A-Za-z0-9_.:%\[\]-]{0,254}")
USER: Final = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63})?")
