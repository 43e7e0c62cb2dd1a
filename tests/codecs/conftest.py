from hypothesis import settings

# Examples differ in size by orders of magnitude, and the machine may be shared.
settings.register_profile("codecs", deadline=None)
settings.load_profile("codecs")
