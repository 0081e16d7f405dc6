"""The mathematics of attention kernels: schedules of the online softmax, and how they follow from its definition."""
