"""Profiles: where the time of a few training steps goes. ``replicant.profile`` records one."""

from ._profile import Profile, profile
from ._report import OperationProfile, StepProfile

__all__ = ["OperationProfile", "Profile", "StepProfile", "profile"]
