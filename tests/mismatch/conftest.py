"""Property tests are not timed: the first example pays for imports, and machines differ."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
