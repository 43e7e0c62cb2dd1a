"""LC-Checkpoint (seed 001): a training's state as a chain of lossy deltas that are added to it.

    step       one tensor's delta: symbols, their values, and the addition
    quantise   from two states of a model to steps, by ``buckets`` or ``levels``
    payload    the bytes of the steps of many tensors, once or at several times, and back
    coders     how symbols are stored: huffman, packed, ans
    stages     what the stages have in common, and the short form of a line

A delta is taken against the state that the decoder has, not the one that the training had
before: what quantisation leaves out of one delta is in the next one. The encoder must
therefore add each step to its own copy of that state, with ``Addition.apply``, as the decoder does.
Nothing here does I/O or starts threads.
"""
