"""A run as OpenTelemetry traces (B11, extra `otel`)."""
