"""What the callbacks of several frameworks share.

One framework alone: its own folder.
"""

import mvc.api  # noqa: F401  (so that a repository that is opened here is the public one)
