"""What lies where in the shared memory of each kernel of a plan."""

from flashgen.plan import after, planes, standard
from flashgen.plan.model import KernelPlan, Plan, Region


def memory_map(plan: Plan, kernel: KernelPlan) -> tuple[Region, ...]:
    """The named pieces of a kernel's shared memory: the plan's own map is the attention's, kernels before and after have theirs,
    and those of standard attention share it.

    >>> [region.name for region in memory_map(plan, plan.launch.kernels[0])]
    ['Q', 'K', 'V']
    """
    match kernel.entry:
        case "split_keys_values":
            return (planes.SPLIT_REGION,)
        case "forward_plain":
            return planes.plain_regions(plan.spec, plan.tile)
        case "head_maximum":
            return (after.REGION,)
        case "scores" | "output":
            return standard.held(plan.smem, kernel.entry)
    return plan.smem.regions if kernel.shared_bytes else ()
