"""What changes the weights of a training before they are deployed and stored. Pure, in memory.

    reducer      a state becomes the one that is stored
    topk, grid, bits, weights    stages that make production weights
    lc           stages that store a state as the one before plus a coded step
    decisions    stages that say whether a version is saved
    production   stages and decisions, version by version

What needs a repository: ``mvc.repo.commit.commit`` and ``mvc.training``.
"""
