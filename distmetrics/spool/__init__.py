"""What is closed but not yet committed, on disk: windows outlive processes."""
