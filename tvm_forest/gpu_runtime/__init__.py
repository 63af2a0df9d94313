"""Kernels of a GPU without a compiler: what to launch, and how to reach the driver.

takes: images of kernels, plans; gives: functions of arrays. Nothing here imports TVM.
"""
