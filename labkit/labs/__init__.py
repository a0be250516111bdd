"""What a lab's notebook calls: presets, run folders, measurements, figures, exercises, results."""
