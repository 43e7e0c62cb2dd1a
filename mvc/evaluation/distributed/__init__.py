"""GM, FGM and other protocols compared on simulated workers, after the thesis on both.

Its tables cannot be reproduced (``thesis`` says why); what it claims is measured here.
"""
