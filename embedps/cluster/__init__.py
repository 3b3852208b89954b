"""Holds the clusters that units run on: this process, local processes, or servers of TF_CONFIG."""
