"""`:export`: a session as a pipeline that CI can run."""
