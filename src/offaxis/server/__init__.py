"""The HTTP service with its page: ``offaxis serve``."""
