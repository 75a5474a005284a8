"""Items on other processes and machines, by Dask distributed (B7); imported with `--cluster`."""
