"""mvc: git for model weights.

``import mvc`` is cheap: neither torch nor numpy is imported before they are needed.
"""

__version__ = "0.1.0"
