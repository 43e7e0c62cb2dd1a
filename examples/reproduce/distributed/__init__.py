"""One model that workers train together, talking as little as possible: GM and FGM.

The tables of the thesis on both cannot be reproduced (``thesis.json`` says why); what it claims is
measured here, on simulated workers.
"""

from .commands import Appendix, Compare, Drift

__all__ = ["COMMANDS"]

COMMANDS = {"compare": Compare, "drift": Drift, "appendix": Appendix}
