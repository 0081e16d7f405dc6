"""The strategies of the backward, in the order in which they are asked."""

from flashgen.plan.algorithms.backward_host import BackwardHost
from flashgen.plan.algorithms.backward_mma_sync import BackwardMmaSync
from flashgen.plan.algorithms.backward_wgmma import BackwardWgmma
from flashgen.plan.algorithms.backward_wgmma_pair import BackwardWgmmaPair
from flashgen.plan.strategy import BackwardStrategy

BACKWARD_STRATEGIES: list[BackwardStrategy] = [BackwardHost(), BackwardWgmma(), BackwardWgmmaPair(), BackwardMmaSync()]
