"""A run as OpenTelemetry traces (extra `otel`)."""
