"""The scaling-invariance audit: does what a training logs depend on the number of ranks?"""
