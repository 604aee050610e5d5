"""The paper's tables as data, and every table and figure of it as Python functions with typed settings."""
