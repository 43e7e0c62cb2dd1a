from tests.models.conftest import project, repo

__all__ = ["project", "repo"]
