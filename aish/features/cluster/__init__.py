"""`--cluster`: items in slices on the workers of Dask."""
