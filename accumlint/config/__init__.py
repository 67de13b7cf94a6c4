"""The configuration auditor: the batch that the files promise is the batch that trains.

``may_be_configuration`` is the cheap look for discovery; ``audit`` reads configurations, launch lines,
dependency files and scripts of one tree and returns findings. Neither imports a training framework.
"""

from accumlint.config.audit import SourceFile, audit
from accumlint.config.sieve import may_be_configuration

__all__ = ["SourceFile", "audit", "may_be_configuration"]
