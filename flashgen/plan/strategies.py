"""The strategies of the forward, in the order in which they are asked."""

from flashgen.plan.algorithms.keys_outer import KeysOuter
from flashgen.plan.algorithms.passes import Passes
from flashgen.plan.algorithms.standard import Standard
from flashgen.plan.engines.host import Host
from flashgen.plan.engines.mma_sync import MmaSync
from flashgen.plan.engines.wgmma import Wgmma
from flashgen.plan.operands.plain import PlainMmaSync
from flashgen.plan.operands.planes_mma_sync import PlanesMmaSync
from flashgen.plan.operands.planes_wgmma import PlanesWgmma
from flashgen.plan.strategy import Strategy

STRATEGIES: list[Strategy] = [Host(), Wgmma(), MmaSync(), PlanesWgmma(), PlanesMmaSync(), PlainMmaSync(), Passes(), KeysOuter(), Standard()]
