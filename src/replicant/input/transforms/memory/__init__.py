"""What a pipeline keeps: caches, and elements that are read ahead."""
