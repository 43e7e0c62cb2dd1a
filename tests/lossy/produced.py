"""Production weights of arrays, as the tests of stages ask for them."""

from mvc.lossy.reducer import Reducer


def produce(pipeline, before, training, *, exact=(), **options):
    return Reducer(pipeline, exact).produce(before, training, **options)
