"""Settings of every test run: no deadline per hypothesis example, since machines and first calls differ."""

from hypothesis import settings

settings.register_profile("sparrow", deadline=None)
settings.load_profile("sparrow")
