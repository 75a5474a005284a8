"""`--cluster`: runs slices of items on Dask workers."""
