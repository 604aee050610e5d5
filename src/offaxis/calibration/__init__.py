"""ID scores -> p-values, thresholds and their guarantees; drift of a stream."""
