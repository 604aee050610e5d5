"""The HTTP service and its web page: ``offaxis serve``."""
