"""What the suites of remotes share: a history of all kinds, what is compared, places of remotes."""
