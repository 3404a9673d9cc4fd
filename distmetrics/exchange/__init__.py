"""All ranks' windows made one: rounds in which workers agree on windows and add up lanes."""
