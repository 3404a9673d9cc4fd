"""One rank's contributions, cut into windows and folded into lanes as the steps go by."""
